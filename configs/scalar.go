package configs

import (
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// sizeUnits are the units of a size, in bytes.
var sizeUnits = map[string]int64{
	"": 1, "b": 1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}

// Errors of the parsers below: the problem in words, to follow the value.
var (
	errNotSize     = errors.New("is not a size")
	errTooLarge    = errors.New("is too large")
	errNegative    = errors.New("is negative")
	errNotDuration = errors.New("is not a duration")
	errNoUnit      = errors.New("has no unit")
)

// parseSize reads a size in bytes: a number, perhaps with decimals, and a unit such as MiB (1024²) or MB (1000²). Capitals do not matter.
// Fractions of a byte are dropped.
func parseSize(s string) (int64, error) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "-") {
		return 0, errNegative
	}
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit, ok := sizeUnits[strings.ToLower(strings.TrimSpace(s[len(digits):]))]
	if !ok || digits == "" || len(digits) > 32 || strings.Trim(digits, "0123456789.") != "" || strings.Count(digits, ".") > 1 ||
		strings.HasPrefix(digits, ".") || strings.HasSuffix(digits, ".") {
		return 0, errNotSize
	}
	number, ok := new(big.Rat).SetString(digits)
	if !ok {
		return 0, errNotSize
	}
	number.Mul(number, new(big.Rat).SetInt64(unit))
	whole := new(big.Int).Quo(number.Num(), number.Denom())
	if !whole.IsInt64() {
		return 0, errTooLarge
	}
	return whole.Int64(), nil
}

// formatSize writes a size so that parseSize reads it back.
func formatSize(n int64) string {
	for _, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := sizeUnits[strings.ToLower(unit)]; n != 0 && n%size == 0 {
			return strconv.FormatInt(n/size, 10) + unit
		}
	}
	return strconv.FormatInt(n, 10)
}

// parseDuration reads what time.ParseDuration reads and, in front of it, weeks and days of 24 hours: 30d, 1w2d, 1d12h. It refuses negative ones.
func parseDuration(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "-") {
		return 0, errNegative
	}
	if s == "0" {
		return 0, nil
	}
	if s != "" && strings.Trim(s, "0123456789.") == "" {
		return 0, errNoUnit
	}
	var total time.Duration
	rest := s
	for _, unit := range []struct {
		name string
		size time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		number, behind, found := strings.Cut(rest, unit.name)
		if !found {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil || n < 0 {
			return 0, errNotDuration
		}
		if n > int64((math.MaxInt64-total)/unit.size) {
			return 0, errTooLarge
		}
		total += time.Duration(n) * unit.size
		rest = behind
	}
	if rest == "" && rest != s {
		return total, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || strings.ContainsAny(rest, "+-") {
		return 0, errNotDuration
	}
	if d > math.MaxInt64-total {
		return 0, errTooLarge
	}
	return total + d, nil
}

// formatDuration writes a duration so that parseDuration reads it back, in whole days where it is some.
func formatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	if d != 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// hasLeadingZero tells whether a decimal number begins like an octal one.
func hasLeadingZero(s string) bool {
	s = strings.TrimPrefix(s, "-")
	return len(s) > 1 && s[0] == '0'
}
