package mqttserver

import (
	"slices"
	"strings"

	"github.com/holdfast-edge/holdfast/ingest/topic"
)

// rights are the filters of one client. Nothing else is allowed.
type rights struct{ publish, subscribe []string }

// rightsOf returns what a client may do.
func (c Config) rightsOf(user, client string) (r rights) {
	for _, a := range c.Access {
		if len(a.Users) > 0 && !slices.Contains(a.Users, user) {
			continue
		}
		for _, f := range a.Publish {
			if f, ok := fill(f, user, client); ok {
				r.publish = append(r.publish, f)
			}
		}
		for _, f := range a.Subscribe {
			if f, ok := fill(f, user, client); ok {
				r.subscribe = append(r.subscribe, f)
			}
		}
	}
	return r
}

// fill puts a client's names into a pattern. A name that is empty, or that means something in a filter, fills in nothing:
// a client that calls itself "+" or "a/#" must not get at the topics of others.
func fill(pattern, user, client string) (filter string, ok bool) {
	for _, p := range []struct{ mark, name string }{{"{user}", user}, {"{clientid}", client}} {
		if !strings.Contains(pattern, p.mark) {
			continue
		}
		if p.name == "" || strings.ContainsAny(p.name, "+#/${}") {
			return "", false
		}
		pattern = strings.ReplaceAll(pattern, p.mark, p.name)
	}
	return pattern, true
}

// mayPublish says whether a topic is one that the client may publish to. Topics of servers never are.
func (r rights) mayPublish(name string) bool {
	return !strings.HasPrefix(name, "$") && slices.ContainsFunc(r.publish, func(f string) bool { return topic.Matches(f, name) })
}

// maySubscribe says whether the client may have everything that a filter matches.
func (r rights) maySubscribe(filter string) bool {
	return slices.ContainsFunc(r.subscribe, func(f string) bool { return topic.Covers(f, filter) })
}
