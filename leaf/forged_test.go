package leaf

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/leak"
)

// TestAppendIsAnsweredByTheDaemonAlone lets local applications subscribe to what others append, and make streams of it, to answer in the daemon's place: a
// caller that believed such an answer would drop a record that is stored nowhere.
func TestAppendIsAnsweredByTheDaemonAlone(t *testing.T) {
	leak.Check(t)
	hash, err := HashPassword("x")
	if err != nil {
		t.Fatal(err)
	}
	for _, users := range [][]User{nil, {{Name: "u", Password: hash}, {Name: "few", Password: hash, Publish: Subjects{Allow: []string{"holdfast.append.calc"}}}}} {
		t.Run(fmt.Sprintf("%d users", len(users)), func(t *testing.T) {
			s, _ := appsLeaf(t, Apps{Users: users})
			_, own := daemon(t, s)
			for _, subject := range []string{"holdfast.append.calc", "holdfast.append.calc.>"} {
				if _, err := own.Subscribe(subject, func(m *nats.Msg) {
					time.AfterFunc(unanswered/3, func() { _ = m.Respond([]byte("stored " + string(m.Data))) }) // whoever forges is faster
				}); err != nil {
					t.Fatal(err)
				}
			}
			if err := own.Flush(); err != nil {
				t.Fatal(err)
			}
			url := "nats://" + s.listen
			if users != nil {
				url = "nats://u:x@" + s.listen
			}
			caller := dial(t, url, nats.Timeout(patience))
			evil := dial(t, url, nats.Timeout(patience), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
			for _, subject := range []string{">", "*.append.>", "holdfast.append.calc", "holdfast.append.calc.a.b", "$JS.>", "$JS.capture.append.calc", "$JS.capture.append.>"} {
				if _, err := evil.Subscribe(subject, func(m *nats.Msg) {
					if string(m.Data) == "record" {
						_ = m.Respond([]byte("forged"))
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
			js, err := jetstream.New(evil)
			if err != nil {
				t.Fatal(err)
			}
			for i, subject := range []string{"holdfast.>", "*.append.>", "$JS.capture.append.>", "*.*.append.>", ">"} {
				for _, silent := range []bool{false, true} {
					name := fmt.Sprintf("F%d%v", i, silent)
					if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}, NoAck: silent}); err != nil {
						continue
					}
					askAppend(t, caller, name+" on "+subject)
					if err := js.DeleteStream(t.Context(), name); err != nil {
						t.Fatal(err)
					}
				}
			}
			if users != nil {
				few := dial(t, "nats://few:x@"+s.listen, nats.Timeout(patience), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
				if m, err := few.Request("holdfast.append.calc", []byte("record"), patience); err != nil || string(m.Data) != "stored record" {
					t.Errorf("append of a user that may do nothing else: %v, %v", m, err)
				}
				if m, err := few.Request("holdfast.append.calc.more", []byte("record"), unanswered); err == nil {
					t.Errorf("append of a user that may not: %s", m.Data)
				}
			}
		})
	}
}

// askAppend appends while a stream is there that may want to answer.
func askAppend(t *testing.T, nc *nats.Conn, beside string) {
	t.Helper()
	for _, subject := range []string{"holdfast.append.calc", "holdfast.append.calc.a.b"} {
		inbox, err := nc.SubscribeSync(nc.NewInbox())
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishRequest(subject, inbox.Subject, []byte("record")); err != nil {
			t.Fatal(err)
		}
		var answers []string
		for wait := patience; ; wait = unanswered / 2 {
			m, err := inbox.NextMsg(wait)
			if err != nil {
				break
			}
			answers = append(answers, string(m.Data))
		}
		if !slices.Equal(answers, []string{"stored record"}) {
			t.Errorf("beside %s, %s is answered %q", beside, subject, answers)
		}
	}
}

func TestAppendingPermissions(t *testing.T) {
	for subject, want := range map[string]string{
		"holdfast.append.calc":   "$JS.capture.append.calc",
		"holdfast.append.calc.>": "$JS.capture.append.calc.>",
		"*.append.*.x":           "$JS.capture.append.*.x",
		"holdfast.append.>":      appended,
		"holdfast.>":             appended,
		">":                      appended,
		"orders.>":               "",
		"holdfast.append":        "",
	} {
		got := Subjects{Allow: []string{subject}, Deny: []string{"orders.x"}}.appending()
		if all := append([]string{subject}, want); want == "" && len(got.Allow) != 1 || want != "" && !slices.Equal(got.Allow, all) || len(got.Deny) != 1 {
			t.Errorf("%q becomes %q, %q", subject, got.Allow, got.Deny)
		}
	}
}

func TestNothingDeclaredTakesWhatIsAppended(t *testing.T) {
	for subject, want := range map[string]int{"holdfast.append.x": 1, "holdfast.>": 1, "*.append.*": 1, "holdfast.other": 0} {
		var faults []string
		js := streams(t, fmt.Sprintf(`{"name": "A", "subjects": [%q]}`, subject))
		js.Validate(func(key, problem, _ string) { faults = append(faults, key+" "+problem) })
		Apps{Mappings: []Mapping{{From: subject, To: "x"}}}.Validate(func(key, problem, _ string) {
			if key == "mappings[0].from" {
				faults = append(faults, key+" "+problem)
			}
		})
		if len(faults) != 2*want {
			t.Errorf("%q has faults %q, want %d", subject, faults, 2*want)
		}
	}
}
