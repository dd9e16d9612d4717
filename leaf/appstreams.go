package leaf

import "github.com/nats-io/nats-server/v2/server"

// AppStream is a stream of local applications; buckets and object stores are streams, too.
type AppStream struct {
	Name     string
	Last     uint64 // its last sequence
	Subjects int    // how many different subjects it holds: each takes memory
	Changed  uint64 // another number whenever something was stored, removed, delivered or acknowledged
}

// AppStreams returns the streams of local applications. With none it costs nothing; the consumers, which go into Changed alone, are looked at only if wanted.
// While JetStream is stopped there are none.
func (s *Server) AppStreams(consumers bool) []AppStream {
	account, err := s.srv.LookupAccount(AccountApp)
	if err != nil || !account.JetStreamEnabled() || account.JetStreamUsage().Streams == 0 {
		return nil
	}
	z, err := s.srv.Jsz(&server.JSzOptions{Account: AccountApp, Accounts: true, Streams: true, Consumer: consumers})
	if err != nil {
		return nil
	}
	var all []AppStream
	for _, a := range z.AccountDetails {
		for _, st := range a.Streams {
			changed := st.State.LastSeq + st.State.FirstSeq + uint64(st.State.NumDeleted)
			for _, c := range st.Consumer {
				changed += c.AckFloor.Consumer + c.Delivered.Consumer
			}
			all = append(all, AppStream{Name: st.Name, Last: st.State.LastSeq, Subjects: st.State.NumSubjects, Changed: changed})
		}
	}
	return all
}
