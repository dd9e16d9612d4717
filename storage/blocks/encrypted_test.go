package blocks

import (
	"errors"
	"os"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// TestEncryptedBlocks: with the key an encrypted stream is walked and mended like any other.
func TestEncryptedBlocks(t *testing.T) {
	for _, name := range []string{"aes", "chacha"} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.key = Key{Secret: "0123456789abcdef", Cipher: name}
			b.start()
			const n = 20_000
			b.fill(n, 200, jetstream.NoCompression)
			b.stop()
			r := b.walk()
			if r.Messages != n || r.Damaged() || !r.Index.Fresh || r.Index.Messages != n || len(r.Blocks) < 2 {
				t.Fatalf("Walk = %d messages, %+v, %d blocks", r.Messages, r.Index, len(r.Blocks))
			}
			path := b.stream().BlockPath(r.Blocks[0].Number)
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			clear(raw[1<<20 : 1<<20+4096])
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			want := b.walk()
			if lost := n - want.Messages; !want.Damaged() || lost == 0 || lost > 20 {
				t.Fatalf("%d lost, %+v", lost, want.Blocks[0])
			}
			if _, done, err := b.stream().Mend(b.hands()); err != nil || len(done) != 1 {
				t.Fatalf("Mend = %+v, %v", done, err)
			}
			if r := b.walk(); r.Damaged() || r.Messages != want.Messages {
				t.Errorf("after Mend: %d messages, %+v", r.Messages, r.Blocks[0])
			}
			b.start()
			if st := b.state(); st.Msgs != want.Messages || st.LastSeq != n {
				t.Errorf("after Mend the server says %+v, want %d messages", st, want.Messages)
			}
			b.stop()
			b.key.Secret = ""
			if _, err := b.stream().Walk(nil); !errors.Is(err, ErrEncrypted) {
				t.Errorf("Walk without the key = %v, want ErrEncrypted", err)
			}
		})
	}
}
