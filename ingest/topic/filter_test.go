package topic

import "testing"

func TestFilters(t *testing.T) {
	for _, tt := range []struct {
		filter, topic string
		want          bool
	}{
		{"a/b", "a/b", true}, {"a/b", "a/c", false}, {"a/b", "a", false}, {"a", "a/b", false},
		{"#", "a/b", true}, {"#", "/", true}, {"#", "$SYS/x", false}, {"+/x", "$SYS/x", false}, {"$SYS/#", "$SYS/x", true},
		{"a/#", "a", true}, {"a/#", "a/", true}, {"a/#", "ab", false}, {"+", "a", true}, {"+", "a/b", false}, {"+", "/a", false},
		{"/+", "/a", true}, {"+/+", "/a", true}, {"a/+/c", "a//c", true}, {"a/+", "a/", true}, {"a/+", "a", false},
	} {
		if got := Matches(tt.filter, tt.topic); got != tt.want {
			t.Errorf("Matches(%q, %q) = %v", tt.filter, tt.topic, got)
		}
	}
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"#", "a/#", true}, {"a/#", "#", false}, {"a/#", "a", true}, {"a/+", "a/b", true}, {"a/b", "a/+", false}, {"+/b", "a/b", true},
		{"+/#", "a/b/c", true}, {"+", "a/b", false}, {"a", "a", true}, {"#", "$x", false}, {"a/+", "a/#", false}, {"a/b/#", "a", false},
	} {
		if got := Covers(tt.a, tt.b); got != tt.want {
			t.Errorf("Covers(%q, %q) = %v", tt.a, tt.b, got)
		}
	}
}
