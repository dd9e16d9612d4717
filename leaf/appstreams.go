package leaf

import (
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

// AppStream is a stream of local applications; buckets and object stores are streams, too.
type AppStream struct {
	Name     string
	Last     uint64 // its last sequence
	Subjects int    // how many different subjects it holds: each takes memory
	Changed  uint64 // another number whenever something was stored, removed, delivered or acknowledged
	Full     string // why it refuses more, in words; empty: it does not
}

// AppStreams returns the streams of local applications. With none it costs nothing; the consumers, which go into Changed alone, are looked at only if wanted.
// While JetStream is stopped there are none.
func (s *Server) AppStreams(consumers bool) []AppStream {
	account, err := s.srv.LookupAccount(AccountApp)
	if err != nil || !account.JetStreamEnabled() || account.JetStreamUsage().Streams == 0 {
		return nil
	}
	z, err := s.srv.Jsz(&server.JSzOptions{Account: AccountApp, Accounts: true, Streams: true, Config: true, Consumer: consumers})
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
			all = append(all, AppStream{Name: st.Name, Last: st.State.LastSeq, Subjects: st.State.NumSubjects, Changed: changed, Full: full(st.Config, st.State)})
		}
	}
	return all
}

// full says which limit a stream that discards what is new has come to.
func full(c *server.StreamConfig, st server.StreamState) string {
	switch {
	case c == nil || c.Discard != server.DiscardNew:
	case c.MaxMsgs > 0 && st.Msgs >= uint64(c.MaxMsgs):
		return fmt.Sprintf("it holds max_msgs, %d", c.MaxMsgs)
	case c.MaxBytes > 0 && st.Bytes >= uint64(c.MaxBytes)/100*98:
		return fmt.Sprintf("it holds %d of max_bytes, %d", st.Bytes, c.MaxBytes)
	}
	return ""
}

// AppUsage is what local applications use together.
type AppUsage struct {
	Streams       int
	Bytes         int64  // of their file streams
	Memory        int64  // of their memory streams
	Connections   int    // also the daemon's own in their account
	APIErrors     uint64 // requests to JetStream that were refused, since the server started
	SlowConsumers uint64 // connections that were closed because they did not read
}

// AppUsage returns what local applications use.
func (s *Server) AppUsage() AppUsage {
	u := AppUsage{SlowConsumers: s.srv.NumSlowConsumersClients()}
	account, err := s.srv.LookupAccount(AccountApp)
	if err != nil {
		return u
	}
	u.Connections = account.NumLocalConnections()
	if account.JetStreamEnabled() {
		j := account.JetStreamUsage()
		u.Streams, u.Bytes, u.Memory, u.APIErrors = j.Streams, int64(j.Store), int64(j.Memory), j.API.Errors
	}
	return u
}

// AppLimits returns the limits that local applications have.
func (s *Server) AppLimits() Apps { return s.options().Apps.limited() }

// HoldApps keeps local applications from storing anything more, or lets them again; what is stored can be read, acknowledged and removed meanwhile. A
// reload of the server's options lets them, too.
func (s *Server) HoldApps(hold bool) error {
	s.reload.Lock()
	defer s.reload.Unlock()
	account, err := s.srv.LookupAccount(AccountApp)
	if err != nil || !account.JetStreamEnabled() {
		return err
	}
	a := s.options().Apps
	limits := server.JetStreamAccountLimits{
		MaxMemory: a.MaxMem, MaxStore: a.MaxFile, MaxStreams: a.MaxStreams, MaxConsumers: a.MaxConsumers, MaxAckPending: maxAppAckPending,
		MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1,
	}
	if hold {
		limits.MaxMemory, limits.MaxStore = 0, 0
	}
	if err := account.UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": limits}); err != nil {
		return fmt.Errorf("change what local applications may store: %w", err)
	}
	return nil
}

// LimitUsers closes the newest connections of users that have more of them, or of subscriptions, than they may. The server has such limits for all
// together only, so they are looked at from outside. It returns the names of those users.
func (s *Server) LimitUsers() []string {
	var limited []string
	for _, u := range s.options().Apps.Users {
		if u.MaxConnections <= 0 && u.MaxSubscriptions <= 0 {
			continue
		}
		z, err := s.srv.Connz(&server.ConnzOptions{Username: true, User: u.Name + u.NKey, Account: AccountApp, Limit: maxListed}) // by number: the oldest first
		if err != nil {
			continue
		}
		subscriptions, closed := 0, false
		for i, c := range z.Conns {
			subscriptions += int(c.NumSubs)
			if u.MaxConnections > 0 && i >= u.MaxConnections || u.MaxSubscriptions > 0 && subscriptions > u.MaxSubscriptions {
				subscriptions -= int(c.NumSubs)
				closed = s.srv.DisconnectClientByID(c.Cid) == nil || closed
			}
		}
		if closed {
			limited = append(limited, u.Name+u.NKey)
		}
	}
	return limited
}

// DropApps closes connections of local applications, to give memory back: those for whom more than pending bytes wait. It returns how many.
func (s *Server) DropApps(pending int) (closed int) {
	z, err := s.srv.Connz(&server.ConnzOptions{Account: AccountApp, Limit: maxListed})
	if err != nil {
		return 0
	}
	for _, c := range z.Conns {
		if c.Pending > pending && c.IP != "" && s.srv.DisconnectClientByID(c.Cid) == nil { // without an address it is one of ours
			closed++
		}
	}
	return closed
}

// maxListed is more connections than there can be.
const maxListed = 20_000
