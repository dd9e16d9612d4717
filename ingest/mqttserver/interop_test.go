package mqttserver

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	third "github.com/at-wat/mqtt-go"
	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/holdfast-edge/holdfast/rig/poll"
)

// TestPaho publishes and subscribes with paho.mqtt.golang, through a restart of the server.
func TestPaho(t *testing.T) {
	dir, cfg := stateDir(t), config(t)
	r := run(t, cfg, dir)
	got := make(chan string, 1000)
	client := paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + cfg.Listen).SetClientID("paho").SetCleanSession(false).SetProtocolVersion(4).
		SetConnectRetry(true).SetConnectRetryInterval(50 * time.Millisecond).SetMaxReconnectInterval(100 * time.Millisecond).SetOrderMatters(true).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { got <- string(m.Payload()) }))
	done := func(token paho.Token) {
		t.Helper()
		if !token.WaitTimeout(patience) || token.Error() != nil {
			t.Fatalf("token: %v", token.Error())
		}
	}
	done(client.Connect())
	defer client.Disconnect(100)
	done(client.Subscribe("d/+", 1, nil))
	var tokens []paho.Token
	var want []string
	for i := range 200 {
		if i == 100 {
			r.stop()
			r, _ = newDaemonOn(t, cfg, dir, r.st)
			poll.Until(t, patience, client.IsConnectionOpen, "paho to be back")
		}
		want = append(want, fmt.Sprint(i))
		tokens = append(tokens, client.Publish("d/x", byte(i%2+1), false, fmt.Sprint(i)))
		if i == 99 {
			for _, token := range tokens {
				done(token)
			}
		}
	}
	for _, token := range tokens {
		done(token)
	}
	r.st.want(t, want...)
	for range 200 {
		select {
		case <-got:
		case <-time.After(patience):
			t.Fatal("a message did not come back")
		}
	}
}

// TestThirdClient does that with a client of another author.
func TestThirdClient(t *testing.T) {
	cfg := config(t)
	r := run(t, cfg, stateDir(t))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err := third.NewReconnectClient(&third.URLDialer{URL: "mqtt://" + cfg.Listen})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 100)
	client.Handle(third.HandlerFunc(func(m *third.Message) { got <- m.Topic + "=" + string(m.Payload) }))
	if _, err := client.Connect(ctx, "third", third.WithCleanSession(false)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(ctx) }()
	if _, err := client.Subscribe(ctx, third.Subscription{Topic: "d/#", QoS: third.QoS1}); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprint(i))
		if err := client.Publish(ctx, &third.Message{Topic: "d/x", QoS: third.QoS(i % 3), Payload: []byte(fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	r.st.want(t, want...)
	for i := range 30 {
		select {
		case m := <-got:
			if m != fmt.Sprintf("d/x=%d", i) {
				t.Errorf("message %d came back as %q", i, m)
			}
		case <-ctx.Done():
			t.Fatal("a message did not come back")
		}
	}
}

// TestMosquittoClients uses mosquitto_pub and mosquitto_sub of MQTT 3.1.1 and 5.
func TestMosquittoClients(t *testing.T) {
	for _, tool := range []string{"mosquitto_pub", "mosquitto_sub"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED, so this is NOT TESTED here: %s is not installed (Debian: mosquitto-clients)", tool)
		}
	}
	for _, version := range []string{"mqttv311", "mqttv5"} {
		cfg := config(t)
		r := run(t, cfg, stateDir(t))
		_, port, err := net.SplitHostPort(cfg.Listen)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		sub := exec.CommandContext(ctx, "mosquitto_sub", "-V", version, "-p", port, "-t", "d/#", "-q", "2", "-i", "sub", "-c", "-x", "3600", "-C", "4", "-F", "%t=%p r%r")
		if version == "mqttv311" {
			sub = exec.CommandContext(ctx, "mosquitto_sub", "-V", version, "-p", port, "-t", "d/#", "-q", "2", "-i", "sub", "-c", "-C", "4", "-F", "%t=%p r%r")
		}
		out, err := sub.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := sub.Start(); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, patience, func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.sessions["sub"] != nil && len(r.sessions["sub"].subs) == 1
		}, "mosquitto_sub to subscribe")
		for _, args := range []string{"-q 0 -m zero -t d/x", "-q 1 -m one -t d/x", "-q 2 -m two -t d/x", "-q 1 -r -m kept -t d/y"} {
			text, err := exec.CommandContext(ctx, "mosquitto_pub", append([]string{"-V", version, "-p", port}, strings.Fields(args)...)...).CombinedOutput()
			if err != nil {
				t.Fatalf("mosquitto_pub %s: %v: %s", args, err, text)
			}
		}
		var lines []string
		for s := bufio.NewScanner(out); s.Scan(); {
			lines = append(lines, s.Text())
		}
		if err := sub.Wait(); err != nil {
			t.Error(err)
		}
		if got := strings.Join(lines, ","); got != "d/x=zero r0,d/x=one r0,d/x=two r0,d/y=kept r0" {
			t.Errorf("%s: mosquitto_sub got %s", version, got)
		}
		r.st.want(t, "zero", "one", "two", "kept")
		if text, err := exec.CommandContext(ctx, "mosquitto_pub", "-V", "mqttv5", "-p", port, "-q", "1", "-m", "x", "-t", "other").CombinedOutput(); err == nil && len(text) == 0 {
			t.Error("mosquitto_pub does not say that its message was refused")
		}
	}
}
