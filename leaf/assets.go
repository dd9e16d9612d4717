package leaf

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// JetStream is the jetstream section: what local applications find in their own JetStream without making it. What they make themselves, or
// what was declared once and is not any more, is left alone.
type JetStream struct {
	Streams   []StreamAsset   `yaml:"streams" doc:"streams, each with the keys that nats stream info --json shows below config"`
	Consumers []ConsumerAsset `yaml:"consumers" doc:"consumers, each with stream and the keys that nats consumer info --json shows below config"`
	KV        []BucketAsset   `yaml:"kv" doc:"key-value buckets: bucket, history, ttl, max_bytes, max_value_size, storage, compression, limit_marker_ttl, republish, mirror, sources"`
	Objects   []ObjectAsset   `yaml:"objects" doc:"object stores: bucket, max_age, max_bytes, storage, compression"`
}

// Empty is true when nothing is declared.
func (j JetStream) Empty() bool {
	return len(j.Streams)+len(j.Consumers)+len(j.KV)+len(j.Objects) == 0
}

// StreamAsset declares a stream. The file sets it through Form.
type StreamAsset struct{ form streamForm }

// ConsumerAsset declares a consumer.
type ConsumerAsset struct{ form consumerForm }

// BucketAsset declares a key-value bucket.
type BucketAsset struct{ form bucketForm }

// ObjectAsset declares an object store.
type ObjectAsset struct{ form objectForm }

// Form returns what a JSON object of the asset is decoded into.
func (a *StreamAsset) Form() any { return &a.form }

// Form returns what a JSON object of the asset is decoded into.
func (a *ConsumerAsset) Form() any { return &a.form }

// Form returns what a JSON object of the asset is decoded into.
func (a *BucketAsset) Form() any { return &a.form }

// Form returns what a JSON object of the asset is decoded into.
func (a *ObjectAsset) Form() any { return &a.form }

// declared is what every asset has beside the NATS keys.
type declared struct {
	Sync string `json:"sync"` // SyncInterval, or empty for the same
}

// SyncInterval is the only sync that an asset can have: what was acknowledged is on flash within the interval.
const SyncInterval = "interval"

type streamForm struct {
	server.StreamConfig
	declared
}

type consumerForm struct {
	server.ConsumerConfig
	declared
	Stream string `json:"stream"`
}

// bucketForm has the keys of a bucket as clients have them (ADR-8 of NATS).
type bucketForm struct {
	declared
	Bucket         string                 `json:"bucket"`
	Description    string                 `json:"description"`
	MaxValueSize   int32                  `json:"max_value_size"`
	History        int64                  `json:"history"`
	TTL            time.Duration          `json:"ttl"`
	MaxBytes       int64                  `json:"max_bytes"`
	Storage        server.StorageType     `json:"storage"`
	Replicas       int                    `json:"num_replicas"`
	Placement      *server.Placement      `json:"placement"`
	RePublish      *server.RePublish      `json:"republish"`
	Mirror         *server.StreamSource   `json:"mirror"`
	Sources        []*server.StreamSource `json:"sources"`
	Compression    bool                   `json:"compression"`
	LimitMarkerTTL time.Duration          `json:"limit_marker_ttl"`
	Metadata       map[string]string      `json:"metadata"`
}

// objectForm has the keys of an object store as clients have them (ADR-20 of NATS).
type objectForm struct {
	declared
	Bucket      string             `json:"bucket"`
	Description string             `json:"description"`
	TTL         time.Duration      `json:"max_age"`
	MaxBytes    int64              `json:"max_bytes"`
	Storage     server.StorageType `json:"storage"`
	Replicas    int                `json:"num_replicas"`
	Placement   *server.Placement  `json:"placement"`
	Compression bool               `json:"compression"`
	Metadata    map[string]string  `json:"metadata"`
}

const maxHistory = 64 // of a key, as in all clients

// stream returns the stream that a bucket is, as clients make it.
func (b bucketForm) stream() server.StreamConfig {
	subject := func(bucket string) string { return "$KV." + bucket + ".>" }
	c := server.StreamConfig{
		Name: "KV_" + b.Bucket, Description: b.Description, MaxMsgsPer: max(b.History, 1), MaxBytes: orUnlimited(b.MaxBytes), MaxAge: b.TTL,
		MaxMsgSize: orUnlimited(b.MaxValueSize), Storage: orFile(b.Storage), Replicas: max(b.Replicas, 1), Placement: b.Placement,
		AllowRollup: true, DenyDelete: true, Duplicates: 2 * time.Minute, MaxMsgs: -1, MaxConsumers: -1, AllowDirect: true,
		RePublish: b.RePublish, Discard: server.DiscardNew, Metadata: b.Metadata, Compression: compression(b.Compression),
	}
	if b.TTL > 0 {
		c.Duplicates = min(c.Duplicates, b.TTL)
	}
	if b.LimitMarkerTTL > 0 {
		c.AllowMsgTTL, c.SubjectDeleteMarkerTTL = true, b.LimitMarkerTTL
	}
	if b.Mirror != nil {
		m := *b.Mirror
		m.Name = "KV_" + strings.TrimPrefix(m.Name, "KV_")
		c.Mirror, c.MirrorDirect = &m, true
		return c
	}
	c.Subjects = []string{subject(b.Bucket)}
	for _, from := range b.Sources {
		s := *from
		if len(s.SubjectTransforms) == 0 {
			name := strings.TrimPrefix(s.Name, "KV_")
			s.Name = "KV_" + name
			if s.External == nil || name != b.Bucket {
				s.SubjectTransforms = []server.SubjectTransformConfig{{Source: subject(name), Destination: subject(b.Bucket)}}
			}
		}
		c.Sources = append(c.Sources, &s)
	}
	return c
}

// stream returns the stream that an object store is, as clients make it.
func (o objectForm) stream() server.StreamConfig {
	return server.StreamConfig{
		Name: "OBJ_" + o.Bucket, Description: o.Description, Subjects: []string{"$O." + o.Bucket + ".C.>", "$O." + o.Bucket + ".M.>"},
		MaxAge: o.TTL, MaxBytes: orUnlimited(o.MaxBytes), Storage: orFile(o.Storage), Replicas: max(o.Replicas, 1), Placement: o.Placement,
		Discard: server.DiscardNew, AllowRollup: true, AllowDirect: true, Metadata: o.Metadata, Compression: compression(o.Compression),
	}
}

func compression(on bool) server.StoreCompression {
	if on {
		return server.S2Compression
	}
	return server.NoCompression
}

func orUnlimited[T int32 | int64](n T) T {
	if n == 0 {
		return -1
	}
	return n
}

func orFile(s server.StorageType) server.StorageType {
	if s == 0 {
		return server.FileStorage
	}
	return s
}

// bucketName is what clients take as the name of a bucket.
var bucketName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// asset is one declared thing in the server's terms.
type asset struct {
	path     string // in the section, as streams[0]
	kind     string // stream, consumer, key-value bucket, object store
	name     string // as declared
	stream   server.StreamConfig
	consumer *server.ConsumerConfig // of stream.Name; nil for what is a stream
}

// assets returns everything that is declared, streams first.
func (j JetStream) assets() []asset {
	var all []asset
	for i, s := range j.Streams {
		s.form.Storage = orFile(s.form.Storage)
		all = append(all, asset{fmt.Sprintf("streams[%d]", i), "stream", s.form.Name, s.form.StreamConfig, nil})
	}
	for i, b := range j.KV {
		all = append(all, asset{fmt.Sprintf("kv[%d]", i), "key-value bucket", b.form.Bucket, b.form.stream(), nil})
	}
	for i, o := range j.Objects {
		all = append(all, asset{fmt.Sprintf("objects[%d]", i), "object store", o.form.Bucket, o.form.stream(), nil})
	}
	for i, c := range j.Consumers {
		config := c.form.ConsumerConfig
		if config.Name == "" {
			config.Name = config.Durable
		}
		all = append(all, asset{fmt.Sprintf("consumers[%d]", i), "consumer", c.form.Stream + "/" + config.Name, server.StreamConfig{Name: c.form.Stream}, &config})
	}
	return all
}

// Validate reports every fault of the section that needs no server; CheckAssets finds the others.
func (j JetStream) Validate(fault func(key, problem, remedy string)) {
	seen := map[string]bool{}
	for _, a := range j.assets() {
		id := a.kind + " " + a.name
		switch {
		case a.consumer != nil && (a.stream.Name == "" || a.consumer.Name == ""):
			fault(a.path, "needs a stream and a name", "add stream, and durable_name or name")
		case a.consumer != nil && a.consumer.Durable != "" && a.consumer.Durable != a.consumer.Name:
			fault(a.path+".name", "is not the durable_name", "leave one of the two out")
		case a.name == "":
			fault(a.path, "has no name", "add name, or bucket for buckets and object stores")
		case a.consumer == nil && a.kind != "stream" && !bucketName.MatchString(a.name):
			fault(a.path+".bucket", fmt.Sprintf("%q is not a name of a bucket", a.name), "use letters, digits, - and _")
		case seen[id]:
			fault(a.path, id+" is there already", "keep one of the two")
		case a.kind == "key-value bucket" && a.stream.MaxMsgsPer > maxHistory:
			fault(a.path+".history", fmt.Sprintf("is %d", a.stream.MaxMsgsPer), fmt.Sprintf("choose %d at most", maxHistory))
		case a.consumer == nil:
			for _, subject := range a.stream.Subjects {
				if server.SubjectsCollide(subject, AppendSubject(">")) {
					fault(a.path+".subjects", fmt.Sprintf("%q has subjects in it by which programs append to sources: they never come to it", subject),
						"keep out of "+AppendSubject(">")+"; what is appended is in the captured stream")
				}
			}
		}
		seen[id] = true
	}
	sync := func(path string, d declared) {
		if d.Sync != "" && d.Sync != SyncInterval {
			fault(path+".sync", fmt.Sprintf("%q cannot be had for this one: the server flushes after every message of all streams, or at intervals", d.Sync),
				"use interval; what must be on flash when it is acknowledged goes to a captured stream, by a source with append")
		}
	}
	for i, s := range j.Streams {
		sync(fmt.Sprintf("streams[%d]", i), s.form.declared)
	}
	for i, c := range j.Consumers {
		sync(fmt.Sprintf("consumers[%d]", i), c.form.declared)
	}
	for i, b := range j.KV {
		sync(fmt.Sprintf("kv[%d]", i), b.form.declared)
	}
	for i, o := range j.Objects {
		sync(fmt.Sprintf("objects[%d]", i), o.form.declared)
	}
}

// readable undoes what package json does to the signs of HTML.
var readable = strings.NewReplacer(`\u003e`, ">", `\u003c`, "<", `\u0026`, "&")

// fields returns a configuration as the keys and JSON values of the API.
func fields(config any) (map[string]string, error) {
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(raw, &values); err != nil {
		return nil, err
	}
	out := make(map[string]string, len(values))
	for key, value := range values {
		out[key] = readable.Replace(string(value))
	}
	return out, nil
}
