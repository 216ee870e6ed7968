package stage

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/campaign/internal/scripted"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

func newTestStage(out io.Writer) *Stage {
	s := New(out, time.Second, time.Millisecond)
	s.Partitions = []*Partition{{Topic: rawkafka.Topic{Name: "t"}, History: history.New()}}
	return s
}

// noted demands that the stage noted a violation with this text, or none when it is empty.
func noted(t *testing.T, s *Stage, wrong string) {
	t.Helper()
	broken := s.Broken()
	if wrong == "" && broken != nil {
		t.Errorf("noted as a violation: %v", broken)
	}
	if wrong != "" && (!errors.Is(broken, ErrViolated) || !strings.Contains(broken.Error(), wrong)) {
		t.Errorf("noted %v, want %q", broken, wrong)
	}
}

func fetched(code int16, highWatermark int64, records []byte) kmsg.Response {
	return scripted.Fetched(0, code, highWatermark, records)
}

func TestConsumerNotices(t *testing.T) {
	payload := history.AppendPayload(nil, history.Value{Number: 1}, 40)
	changed := append([]byte(nil), payload...)
	changed[30]++
	good, bad := rawkafka.Plain(payload).Bytes(), rawkafka.Plain(changed).Bytes()
	tests := []struct {
		name  string
		polls []kmsg.Response
		wrong string
	}{
		{"nothing wrong", []kmsg.Response{fetched(0, 0, nil), fetched(0, 1, good), fetched(0, 1, nil)}, ""},
		{"not ready", []kmsg.Response{fetched(CodeNotLeader, -1, nil)}, ""},
		{"refused with a code that says not now elsewhere", []kmsg.Response{fetched(CodeStorage, -1, nil)}, "error code 56"},
		{"the high watermark falls", []kmsg.Response{fetched(0, 1, good), fetched(0, 0, nil)}, "fell from 1 to 0"},
		{"what was read is no more there", []kmsg.Response{fetched(0, 1, good), fetched(1, 0, nil)}, "error code 1"},
		{"above the high watermark", []kmsg.Response{fetched(0, 0, good)}, "above the high watermark"},
		{"another payload", []kmsg.Response{fetched(0, 1, bad)}, "sent was"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newTestStage(io.Discard)
			r := NewConsumer(s, CodeNotLeader)
			conn, _ := scripted.Answering(t, test.polls...)
			for range test.polls {
				r.poll(conn, s.Partitions[0], &r.cursor[0])
			}
			noted(t, s, test.wrong)
		})
	}
}

func TestConsumerBelowTheLogStart(t *testing.T) {
	for _, test := range []struct {
		name        string
		asked, kept int64
		polls       []kmsg.Response
		wrong       string
	}{
		{"deleted before it was read", 5, 0, []kmsg.Response{scripted.Fetched(-1, 1, -1, nil), scripted.Listed(5), scripted.Listed(5), scripted.Fetched(5, 0, 5, nil)}, ""},
		{"not so much was to be deleted", 5, 0, []kmsg.Response{scripted.Fetched(-1, 1, -1, nil), scripted.Listed(6), scripted.Listed(6)}, "asked was to delete what is before 5"},
		{"nothing was to be deleted", 0, 0, []kmsg.Response{scripted.Fetched(-1, 1, -1, nil)}, "error code 1"},
		{"what was deleted comes back", 5, 5, []kmsg.Response{scripted.Fetched(4, 0, 5, nil)}, "the log starts at 4"},
		{"more is gone", 5, 5, []kmsg.Response{scripted.Fetched(6, 0, 6, nil)}, "the log starts at 6"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newTestStage(io.Discard)
			s.Partitions[0].Asked.Store(test.asked)
			s.Partitions[0].Kept.Store(test.kept)
			r := NewConsumer(s, CodeNotLeader, CodeStorage)
			conn, _ := scripted.Answering(t, test.polls...)
			for r.poll(conn, s.Partitions[0], &r.cursor[0]) && r.cursor[0].highWatermark == 0 {
			}
			noted(t, s, test.wrong)
		})
	}
}

// After a violation the verdict is still given; after another end of the load it is not.
func TestPlay(t *testing.T) {
	ended := errors.New("the user interrupts")
	for _, test := range []struct {
		name         string
		load         error
		broken       bool
		judged, fine bool
	}{
		{"nothing wrong", nil, false, true, true},
		{"interrupted", ended, false, false, false},
		{"violated", ErrViolated, true, true, false},
		{"violated at the end", nil, true, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newTestStage(io.Discard)
			judged := false
			err := s.Play(t.Context(), func(context.Context) error {
				if test.broken {
					s.Violate("this")
				}
				return test.load
			}, func(context.Context) error {
				judged = true
				return nil
			})
			if judged != test.judged || (err == nil) != test.fine {
				t.Errorf("judged %v, error %v", judged, err)
			}
		})
	}
}

// The data directory goes when all was right, stays when not, and is copied where it would not stay.
func TestEnd(t *testing.T) {
	for _, test := range []struct {
		name   string
		err    error
		keepIn string
		kept   string // below the temporary directory
	}{
		{"right", nil, "keep", ""},
		{"wrong", errTest, "", "data"},
		{"wrong, and the file system will be gone", errTest, "keep", "keep/kept"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			var out strings.Builder
			s := newTestStage(&out)
			s.Data = filepath.Join(dir, "data")
			if err := errors.Join(os.Mkdir(s.Data, 0o700), os.WriteFile(filepath.Join(s.Data, "file"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			keepIn := test.keepIn
			if keepIn != "" {
				keepIn = filepath.Join(dir, keepIn)
			}
			if err := s.End(test.err, keepIn); !errors.Is(err, test.err) {
				t.Errorf("error %v", err)
			}
			if test.kept == "" {
				if _, err := os.Stat(s.Data); !errors.Is(err, os.ErrNotExist) || out.Len() > 0 {
					t.Errorf("%v, printed %q", err, out.String())
				}
				return
			}
			kept := filepath.Join(dir, test.kept)
			if _, err := os.Stat(filepath.Join(kept, "file")); err != nil || out.String() != "data directory kept: "+kept+"\n" {
				t.Errorf("%v, printed %q", err, out.String())
			}
		})
	}
}

var errTest = errors.New("the log is not what was sent")
