package hub

import (
	"crypto/sha256"

	"github.com/holdfast-edge/holdfast/storage"
)

// Names that leaf and hub have to agree on; docs/WIRE.md is their contract.
const (
	// Account is the hub account that leaves connect to when a Spec names no other.
	Account = "EDGE"
	// Domain is the hub's JetStream domain when a Spec names no other.
	Domain = "hub"
	// LeafAccount is the account of captured streams on every leaf.
	LeafAccount = "CAPTURE"
	// Replicas is the number of copies the hub keeps when a Spec names no other.
	Replicas = 3
	// MinAPILevel is the JetStream API level of nats-server 2.15, the oldest hub that keeps the promises of this package.
	MinAPILevel = 5
	// MinVersion is the server release with MinAPILevel.
	MinVersion = "2.15.0"
)

// Consumer returns the name of the sourcing consumer on the leaf: unique in the fleet, as it appears in acknowledgement subjects.
func Consumer(leaf, stream string) string { return "up_" + leaf + "_" + stream }

// DeliverSubject returns the subject on which a leaf's sourcing consumer delivers to the hub.
func DeliverSubject(leaf, stream string) string { return "up." + leaf + "." + stream }

// The hub streams from which a leaf takes what is sent down to it; the leaf's own streams have the same names.
const (
	// Commands is the stream of commands.
	Commands = "COMMANDS"
	// Documents is the stream of the key-value bucket DocumentBucket.
	Documents = "KV_" + DocumentBucket
	// DocumentBucket is the bucket of configuration documents, with keys {leaf}.{document}.
	DocumentBucket = "DOCUMENTS"
)

// CommandSubject returns the subject of commands to one source of a leaf, or to all of them with source ">".
func CommandSubject(leaf, source string) string { return "cmd." + leaf + "." + source }

// DocumentSubject returns the subject of one configuration document of a leaf, or of all of them with key ">".
func DocumentSubject(leaf, key string) string {
	return "$KV." + DocumentBucket + "." + leaf + "." + key
}

// DownConsumer returns the name of the durable consumer at the hub by which a leaf takes Commands or Documents.
func DownConsumer(leaf, stream string) string { return "down_" + leaf + "_" + stream }

// DownSubject returns the subject on which that consumer delivers to the leaf.
func DownSubject(leaf, stream string) string { return "down." + leaf + "." + stream }

// Filter returns the subject filter of a leaf's records in one stream, gap and epoch records included, placeholders excluded.
func Filter(leaf, stream string) string { return storage.DataSubject(leaf, stream, ">") }

// InboxPrefix returns the prefix of the reply subjects that a leaf uses towards the hub.
func InboxPrefix(leaf string) string { return "_INBOX_" + leaf }

// MirrorName returns the hub stream that mirrors a leaf's stream when its configuration names no other.
func MirrorName(leaf, stream string) string { return leaf + "_" + stream }

// AccountHash returns the token that stands for an account in acknowledgement and reply subjects of nats-server 2.14 and newer
// (feature flags js_ack_fc_v2 and js_api_reply_v2). In operator mode the account's public key takes the place of its name.
func AccountHash(account string) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	sum := sha256.Sum256([]byte(account))
	hash := sum[:8]
	for i, b := range hash {
		hash[i] = digits[int(b)%len(digits)]
	}
	return string(hash)
}
