package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
)

// answerPause is how long no further server may answer until the hub counts as having answered.
const answerPause = time.Second

// Push tells a hub ByJWT which keys are let in no more, as an administrator of its servers, and returns the names of the servers that have taken
// it. They hang up at once on who uses such a key. A server that is down learns it from the others when it is back.
func (f Fleet) Push(ctx context.Context, nc *nats.Conn) ([]string, error) {
	k, err := loadKeys(f.Dir, f.Auth)
	if err != nil {
		return nil, err
	}
	r, err := LoadRegister(f.Dir)
	if err != nil {
		return nil, err
	}
	account, err := k.account()
	if err != nil {
		return nil, err
	}
	m, err := nc.RequestWithContext(ctx, "$SYS.REQ.ACCOUNT."+account+".CLAIMS.LOOKUP", nil)
	if err != nil {
		return nil, fmt.Errorf("ask the hub for its account %s: %w", Account, err)
	}
	claims, err := jwt.DecodeAccountClaims(string(m.Data))
	if err != nil {
		return nil, fmt.Errorf("ask the hub for its account %s: %w", Account, err)
	}
	for _, gone := range r.Revoked {
		// What was signed before is void; a second sooner or later makes no difference, because no key is used again.
		claims.RevokeAt(gone.Key, gone.At.Add(time.Minute))
	}
	token, err := claims.Encode(k.operator)
	if err != nil {
		return nil, fmt.Errorf("sign account %s: %w", Account, err)
	}
	var names []string
	var faults []error
	err = everyServer(ctx, nc, "$SYS.REQ.CLAIMS.UPDATE", []byte(token), func(a answer) {
		if a.Error != nil {
			faults = append(faults, fmt.Errorf("server %s: %s", a.Server.Name, a.Error.Description))
			return
		}
		names = append(names, a.Server.Name)
	})
	slices.Sort(names)
	return names, errors.Join(append(faults, err)...)
}

// Reload makes the hub's servers read their configuration again, as an administrator of the servers, and returns the names of those that did. A
// server does not hang up on a leaf whose user is gone from it, so each is told to: keys are those that are let in no more.
func Reload(ctx context.Context, nc *nats.Conn, account string, keys []string) ([]string, error) {
	servers := map[string]string{} // by id
	if err := everyServer(ctx, nc, "$SYS.REQ.SERVER.PING", nil, func(a answer) { servers[a.Server.ID] = a.Server.Name }); err != nil {
		return nil, err
	}
	var names []string
	var faults []error
	for id, name := range servers {
		if _, err := ask(ctx, nc, "$SYS.REQ.SERVER."+id+".RELOAD", nil); err != nil {
			faults = append(faults, fmt.Errorf("server %s: %w", name, err))
			continue
		}
		names = append(names, name)
		if err := kick(ctx, nc, id, account, keys); err != nil {
			faults = append(faults, fmt.Errorf("server %s: %w", name, err))
		}
	}
	slices.Sort(names)
	return names, errors.Join(faults...)
}

// kick hangs up on the leaves that use one of the keys.
func kick(ctx context.Context, nc *nats.Conn, server, account string, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	a, err := ask(ctx, nc, "$SYS.REQ.SERVER."+server+".CONNZ", fmt.Appendf(nil, `{"auth":true,"limit":65536,"acc":%q}`, account))
	if err != nil {
		return err
	}
	var list struct {
		Connections []struct {
			ID   uint64 `json:"cid"`
			NKey string `json:"nkey"`
			User string `json:"authorized_user"`
		} `json:"connections"`
	}
	if err := json.Unmarshal(a.Data, &list); err != nil {
		return fmt.Errorf("list of connections: %w", err)
	}
	for _, c := range list.Connections {
		if !slices.Contains(keys, c.NKey) && !slices.Contains(keys, c.User) {
			continue
		}
		if _, err := ask(ctx, nc, "$SYS.REQ.SERVER."+server+".KICK", fmt.Appendf(nil, `{"cid":%d}`, c.ID)); err != nil {
			return err
		}
	}
	return nil
}

// answer is what a server says to a request of the system account.
type answer struct {
	Server struct {
		Name string `json:"name"`
		ID   string `json:"id"`
	} `json:"server"`
	Data  json.RawMessage `json:"data"`
	Error *struct {
		Description string `json:"description"`
	} `json:"error"`
}

// ask sends one server a request.
func ask(ctx context.Context, nc *nats.Conn, subject string, body []byte) (answer, error) {
	m, err := nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return answer{}, fmt.Errorf("ask %s: %w", subject[strings.LastIndexByte(subject, '.')+1:], err)
	}
	var a answer
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return answer{}, fmt.Errorf("answer of a server: %w", err)
	}
	if a.Error != nil {
		return answer{}, errors.New(a.Error.Description)
	}
	return a, nil
}

// everyServer sends a request to all servers and calls visit for each answer, until none has come for a while.
func everyServer(ctx context.Context, nc *nats.Conn, subject string, body []byte, visit func(answer)) error {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return fmt.Errorf("ask the hub's servers: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	if err := nc.PublishRequest(subject, inbox, body); err != nil {
		return fmt.Errorf("ask the hub's servers: %w", err)
	}
	for n := 0; ; n++ {
		short, cancel := context.WithTimeout(ctx, answerPause)
		if n == 0 {
			cancel()
			short, cancel = context.WithTimeout(ctx, 5*answerPause)
		}
		m, err := sub.NextMsgWithContext(short)
		cancel()
		if err != nil && n > 0 && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("no server of the hub answers: %w", err)
		}
		if len(m.Data) == 0 {
			return errors.New("no server of the hub answers: is this an administrator of the system account?")
		}
		var a answer
		if err := json.Unmarshal(m.Data, &a); err != nil {
			return fmt.Errorf("answer of a server: %w", err)
		}
		visit(a)
	}
}
