package storage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

// Error codes of nats-server 2.15 (server/errors.json) that say something about the record or the room. All others mean ErrUnavailable.
const (
	codeAccountResources  jetstream.ErrorCode = 10002 // the account's limit
	codeServerResources   jetstream.ErrorCode = 10023 // the server's max_file
	codeMemoryResources   jetstream.ErrorCode = 10028
	codeStorageResources  jetstream.ErrorCode = 10047
	codeMessageTooLarge   jetstream.ErrorCode = 10054
	codeStoreFailed       jetstream.ErrorCode = 10077 // the text tells which of the stream's limits
	codeHeaderTooLarge    jetstream.ErrorCode = 10097
	codeMessageTTLInvalid jetstream.ErrorCode = 10165
	codeMessageTTLOff     jetstream.ErrorCode = 10166
)

// classify turns the outcome of a publish into one of the errors of Append.
func classify(err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &api):
		switch api.ErrorCode {
		case codeAccountResources, codeServerResources, codeMemoryResources, codeStorageResources:
			return fmt.Errorf("%w: server: %w", ErrFull, err)
		case codeMessageTooLarge, codeHeaderTooLarge, codeMessageTTLInvalid, codeMessageTTLOff:
			return fmt.Errorf("%w: server: %w", ErrInvalid, err)
		case codeStoreFailed:
			if strings.HasPrefix(api.Description, "maximum ") { // "maximum bytes exceeded", "maximum messages exceeded"
				return fmt.Errorf("%w: server: %w", ErrFull, err)
			}
			if strings.Contains(api.Description, "too large") {
				return fmt.Errorf("%w: server: %w", ErrInvalid, err)
			}
		}
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg):
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	case errors.Is(err, ErrFailing), errors.Is(err, ErrFull), errors.Is(err, ErrInvalid), errors.Is(err, ErrClosed):
		return err
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
