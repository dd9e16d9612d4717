package configs

import "strings"

// nearest returns the candidate that somebody most likely meant by a misspelt word, or "" when none is close.
func nearest(word string, candidates []string) string {
	if len(word) >= 4 {
		for _, c := range candidates { // password for password_file, budget_bytes for budget
			if strings.HasPrefix(c, word+"_") || strings.HasPrefix(word, c+"_") {
				return c
			}
		}
	}
	best, bestDistance := "", 1+min(len(word), 24)/3
	for _, c := range candidates {
		d := distance(plainKey(word), plainKey(c))
		if d < bestDistance || d == bestDistance && best == "" {
			best, bestDistance = c, d
		}
	}
	return best
}

// plainKey removes the differences that do not matter when looking for what was meant.
func plainKey(s string) string {
	return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s))
}

// distance counts the letters to insert, drop, replace or swap with their neighbour to turn a into b.
func distance(a, b string) int {
	s, t := []rune(a), []rune(b)
	if len(s) > 64 || len(t) > 64 { // nobody misspells that much
		return 64
	}
	rows := make([][]int, len(s)+1)
	for i := range rows {
		rows[i] = make([]int, len(t)+1)
		rows[i][0] = i
	}
	for j := range t {
		rows[0][j+1] = j + 1
	}
	for i := range s {
		for j := range t {
			cost := 1
			if s[i] == t[j] {
				cost = 0
			}
			d := min(rows[i][j+1]+1, rows[i+1][j]+1, rows[i][j]+cost)
			if i > 0 && j > 0 && s[i] == t[j-1] && s[i-1] == t[j] {
				d = min(d, rows[i-1][j-1]+1)
			}
			rows[i+1][j+1] = d
		}
	}
	return rows[len(s)][len(t)]
}
