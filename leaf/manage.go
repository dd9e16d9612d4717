package leaf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// manager speaks the JetStream API of one account.
type manager struct{ nc *nats.Conn }

// errNoAsset means that a stream or consumer is not there.
var errNoAsset = errors.New("is not there")

const (
	codeNoStream   = 10059 // error codes of the API (server/errors.json)
	codeNoConsumer = 10014
)

// request sends body and decodes the answer into into. An error of the API is returned in the server's words.
func (m manager) request(ctx context.Context, subject string, body, into any) error {
	var raw []byte
	var err error
	if body != nil {
		if raw, err = json.Marshal(body); err != nil {
			return err
		}
	}
	reply, err := m.nc.RequestWithContext(ctx, "$JS.API."+subject, raw)
	if err != nil {
		return fmt.Errorf("ask JetStream: %w", err)
	}
	var answer struct {
		Error *server.ApiError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return fmt.Errorf("ask JetStream: %w", err)
	}
	if e := answer.Error; e != nil {
		if e.ErrCode == codeNoStream || e.ErrCode == codeNoConsumer {
			return errNoAsset
		}
		return fmt.Errorf("%s (%d)", e.Description, e.ErrCode)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(reply.Data, into)
}

// found is how an asset is on a server.
type found struct {
	config any // server.StreamConfig or server.ConsumerConfig, as it would be sent to make it again
	stream server.StreamInfo
}

// look returns an asset as it is; errNoAsset says that it is not.
func (m manager) look(ctx context.Context, a asset) (found, error) {
	var f found
	if a.consumer != nil {
		var info server.ConsumerInfo
		if err := m.request(ctx, "CONSUMER.INFO."+a.stream.Name+"."+a.consumer.Name, nil, &info); err != nil {
			return f, err
		}
		if info.Config == nil {
			return f, errors.New("JetStream answers without a configuration")
		}
		c := *info.Config
		c.Metadata = plain(c.Metadata)
		f.config = c
		return f, nil
	}
	if err := m.request(ctx, "STREAM.INFO."+a.stream.Name, nil, &f.stream); err != nil {
		return f, err
	}
	c := f.stream.Config
	c.Metadata = plain(c.Metadata)
	f.config = c
	return f, nil
}

// plain returns metadata without what the server adds.
func plain(metadata map[string]string) map[string]string {
	out := maps.Clone(metadata)
	maps.DeleteFunc(out, func(key, _ string) bool { return len(key) > 6 && key[:6] == "_nats." })
	if len(out) == 0 {
		return nil
	}
	return out
}

// config returns what a declares.
func (a asset) config() any {
	if a.consumer != nil {
		return *a.consumer
	}
	return a.stream
}

// create makes an asset by a configuration; pedantic makes the server refuse what it would put right.
func (m manager) create(ctx context.Context, a asset, config any, pedantic bool) error {
	if c, ok := config.(server.ConsumerConfig); ok {
		return m.consumer(ctx, a, c, server.ActionCreate, pedantic)
	}
	return m.request(ctx, "STREAM.CREATE."+a.stream.Name, streamRequest{config, pedantic}, nil)
}

// update changes an asset that is there.
func (m manager) update(ctx context.Context, a asset, config any) error {
	if c, ok := config.(server.ConsumerConfig); ok {
		return m.consumer(ctx, a, c, server.ActionUpdate, true)
	}
	return m.request(ctx, "STREAM.UPDATE."+a.stream.Name, streamRequest{config, true}, nil)
}

func (m manager) consumer(ctx context.Context, a asset, c server.ConsumerConfig, action server.ConsumerAction, pedantic bool) error {
	subject := "CONSUMER.CREATE." + a.stream.Name + "." + a.consumer.Name
	if c.FilterSubject != "" {
		subject += "." + c.FilterSubject
	}
	return m.request(ctx, subject, server.CreateConsumerRequest{Stream: a.stream.Name, Config: c, Action: action, Pedantic: pedantic}, nil)
}

// remove deletes an asset.
func (m manager) remove(ctx context.Context, a asset) error {
	if a.consumer != nil {
		return m.request(ctx, "CONSUMER.DELETE."+a.stream.Name+"."+a.consumer.Name, nil, nil)
	}
	return m.request(ctx, "STREAM.DELETE."+a.stream.Name, nil, nil)
}

// streamRequest is the body that makes or changes a stream.
type streamRequest struct {
	config   any
	pedantic bool
}

// MarshalJSON puts pedantic beside the configuration's own keys.
func (r streamRequest) MarshalJSON() ([]byte, error) {
	raw, err := json.Marshal(r.config)
	if err != nil || !r.pedantic {
		return raw, err
	}
	return append([]byte(`{"pedantic":true,`), raw[1:]...), nil
}
