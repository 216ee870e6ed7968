package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka's matrix of enable.idempotence, acks, retries and max.in.flight.requests.per.connection, as of Kafka 4.
func TestIdempotenceRules(t *testing.T) {
	const inFlight = "max.in.flight.requests.per.connection="
	for _, c := range []struct {
		given string
		on    bool
		note  string // what the note says, or
		err   string // the error
	}{
		{given: "", on: true},
		{given: "enable.idempotence=true", on: true},
		{given: "enable.idempotence=TRUE acks=all retries=1 " + inFlight + "5", on: true},
		{given: "acks=-1", on: true},
		{given: "retries=2147483647", on: true},
		{given: "enable.idempotence=false"},
		{given: "enable.idempotence=false acks=0 retries=0 " + inFlight + "100"},
		{given: "acks=1", note: "acks=1"},
		{given: "acks=0", note: "acks=0"},
		{given: "retries=0", note: "retries=0"},
		{given: "acks=1 retries=0", note: "retries=0 and acks=1"},
		{given: "acks=1 " + inFlight + "1", note: "acks=1"},
		{given: inFlight + "6", err: "is too many for an idempotent producer, which may have 5: set it to 5, or enable.idempotence=false"},
		{given: "acks=1 " + inFlight + "6", err: "is too many"},
		{given: "enable.idempotence=true acks=1", err: "does not go with acks=1:"},
		{given: "enable.idempotence=true acks=0", err: "does not go with acks=0:"},
		{given: "enable.idempotence=true retries=0", err: "does not go with retries=0:"},
		{given: "enable.idempotence=true " + inFlight + "6", err: "does not go with " + inFlight + "6:"},
		{given: "enable.idempotence=True acks=1 retries=0 " + inFlight + "6", err: "does not go with retries=0 and acks=1 and " + inFlight + "6:"},
		// What franz-go cannot do is refused as well.
		{given: inFlight + "1", err: "cannot be had with idempotence"},
		{given: "enable.idempotence=true " + inFlight + "4", err: "cannot be had with idempotence"},
		{given: "enable.idempotence=false " + inFlight + "4"},
	} {
		p, err := ParseProducerProperties(strings.Fields(c.given))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: error %v, want %q", c.given, err, c.err)
			}
			continue
		}
		if err != nil || p.idempotence != c.on {
			t.Errorf("%q: idempotence %v, %v, want %v", c.given, p.idempotence, err, c.on)
			continue
		}
		notes := strings.Join(p.Notes, "\n")
		if (notes != "") != (c.note != "") || c.note != "" && !strings.Contains(notes, "idempotence is off because of "+c.note+":") {
			t.Errorf("%q: notes %q, want one of %q", c.given, notes, c.note)
		}
		if err := kgo.ValidateOpts(p.options(half)...); err != nil {
			t.Errorf("%q: franz-go refuses it: %v", c.given, err)
		}
	}
}

func half() float64 { return 0.5 }

func TestDeliveryTimeout(t *testing.T) {
	for _, c := range []struct {
		given string
		want  time.Duration
		note  bool
		err   bool
	}{
		{given: "", want: 2 * time.Minute},
		{given: "delivery.timeout.ms=30005", want: 30005 * time.Millisecond},
		{given: "delivery.timeout.ms=30004", err: true},
		{given: "delivery.timeout.ms=30000 linger.ms=0", want: 30 * time.Second},
		{given: "delivery.timeout.ms=1000", err: true},
		{given: "request.timeout.ms=200000", want: 200_005 * time.Millisecond, note: true},
		{given: "request.timeout.ms=119995", want: 2 * time.Minute},
		{given: "request.timeout.ms=2147483647", want: 2147483647 * time.Millisecond, note: true},
		{given: "delivery.timeout.ms=2147483647 request.timeout.ms=2147483647", err: true},
	} {
		p, err := ParseProducerProperties(strings.Fields(c.given))
		switch {
		case (err != nil) != c.err:
			t.Errorf("%q: %v", c.given, err)
		case err == nil && (p.deliveryTimeout != c.want || (len(p.Notes) > 0) != c.note):
			t.Errorf("%q: %v with notes %q, want %v", c.given, p.deliveryTimeout, p.Notes, c.want)
		}
	}
}

// A value that is out of range, or not of its kind, is refused with what would be right.
func TestPropertyValues(t *testing.T) {
	for setting, want := range map[string]string{
		"acks=2": "all, 1 or 0 is wanted", "acks=ALL": "all, 1 or 0", "acks=": "all, 1 or 0",
		"retries=-1": "a whole number from 0 to 2147483647", "retries=many": "a whole number", "retries=2147483648": "a whole number",
		"enable.idempotence=yes": "true or false", "compression.type=brotli": "zstd", "linger.ms=-1": "from 0 to 60000",
		"linger.ms=60001": "from 0 to 60000", "linger.ms=1.5": "a whole number", "max.in.flight.requests.per.connection=0": "from 1",
		"batch.size=0": "from 512", "delivery.timeout.ms=999": "from 1000", "request.timeout.ms=99": "from 100",
		"buffer.memory=0": "from 1", "client.id=" + strings.Repeat("x", 257): "256 bytes", "linger.ms": "NAME=VALUE", "=5": "did you mean",
	} {
		if _, err := ParseProducerProperties([]string{setting}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %q", setting, err, want)
		}
	}
	p, err := ParseProducerProperties([]string{" acks = all ", "client.id=a=b", "linger.ms= 7"})
	if err != nil || p.clientID != "a=b" || p.linger != 7*time.Millisecond {
		t.Errorf("blanks and a second =: %+v, %v", p, err)
	}
	if _, err := ParseProducerProperties([]string{"linger.ms=1", "linger.ms=1"}); err == nil || !strings.Contains(err.Error(), "linger.ms is set twice") {
		t.Errorf("set twice: %v", err)
	}
}

// Each name that is not known is answered with the nearest one, and each that cannot be had with the reason.
func TestUnknownProperties(t *testing.T) {
	for name, want := range map[string]string{
		"linger": "did you mean linger.ms?", "linger.msec": "did you mean linger.ms?", "ack": "did you mean acks?",
		"enable.idempotency": "did you mean enable.idempotence?", "batch.bytes": "did you mean batch.size?",
		"compression.codec": "compression.codec cannot be set", "max.in.flight": "did you mean", "LINGER.MS": "did you mean",
		"delivery.timeout": "did you mean delivery.timeout.ms?", "transactional.ID": "did you mean transactional.id?",
		"transactional.id": "OnceMQ has no transactions", "ssl.truststore.location": "TLS is not supported yet", "max.block.ms": "delivery.timeout.ms",
		"bootstrap.servers": "-b HOST:PORT", "parse.key": "-K SEPARATOR", "partitioner.class": "-p names one partition",
	} {
		if _, err := ParseProducerProperties([]string{name + "=1"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// franz-go takes whatever the table takes: the bounds of the table are within its own.
func TestPropertyBounds(t *testing.T) {
	if !slices.IsSortedFunc(properties, func(a, b property) int { return strings.Compare(a.name, b.name) }) {
		t.Error("the properties are not in order of their names, which finding them relies on")
	}
	for _, p := range properties {
		for _, value := range []string{"0", "1", "10", "100", "512", "1000", "1024", "60000", "900000", "3600000", "1073741824", "2147483647"} {
			settings := []string{p.name + "=" + value, "enable.idempotence=false"}
			if p.name == "enable.idempotence" {
				settings = settings[:1]
			}
			parsed, err := ParseProducerProperties(settings)
			if err != nil {
				continue
			}
			if err := kgo.ValidateOpts(parsed.options(half)...); err != nil {
				t.Errorf("%s=%s: franz-go refuses it: %v", p.name, value, err)
			}
		}
		if !strings.Contains(ProducerPropertiesHelp(), fmt.Sprintf("  %s=%s\n", p.name, p.value)) {
			t.Errorf("the help does not have %s", p.name)
		}
	}
}

func TestBackoff(t *testing.T) {
	p, err := ParseProducerProperties(nil)
	if err != nil {
		t.Fatal(err)
	}
	var waits []time.Duration
	for _, failures := range []int{0, 1, 2, 3, 4, 5, 6, 1 << 30} {
		waits = append(waits, p.backoff(half)(failures))
	}
	ms := time.Millisecond
	if want := []time.Duration{100 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1000 * ms, 1000 * ms, 1000 * ms}; !slices.Equal(waits, want) {
		t.Errorf("waits %v, want %v", waits, want)
	}
	low, high := p.backoff(func() float64 { return 0 })(1), p.backoff(func() float64 { return 1 })(1)
	if low != 80*ms || high != 120*ms {
		t.Errorf("a wait of 100 ms is spread from %v to %v, want 80 to 120 ms", low, high)
	}
	for given, want := range map[string]time.Duration{
		"retry.backoff.ms=5000": 1000 * ms, "retry.backoff.max.ms=10": 10 * ms, "retry.backoff.ms=0": 0, "retry.backoff.max.ms=0": 0,
	} {
		p, err := ParseProducerProperties([]string{given})
		if err != nil || p.backoff(half)(3) != want {
			t.Errorf("%s: %v, %v, want %v", given, p.backoff(half)(3), err, want)
		}
	}
}
