package founding

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// TestFoundersAndDirectory: a data directory is started again only as what it was.
func TestFoundersAndDirectory(t *testing.T) {
	alone := memfs.New()
	if err := alone.MkdirAll("var/data"); err != nil {
		t.Fatal(err)
	}
	setFile(t, alone, "var/data/"+statePrefix+"0000000000000001", nil)
	several := memfs.New()
	f := newFounders(t, 6)
	f.mustStart(several, three[1])
	for _, c := range []struct {
		name, self string
		fs         vfs.FS
		list       []string
		want       string
	}{
		{"of a cluster of one", three[0], alone, three, "is the data directory of a cluster of one node"},
		{"of another node", three[2], several, three, "belongs to founder 2"},
		{"of another list", three[1], several, three[:2], "belongs to founder 2"},
		{"not in the list", "h4:9192", memfs.New(), three, "h4:9192 is not among them"},
		{"no list", three[0], memfs.New(), nil, "not among"},
		{"twice in the list", three[0], memfs.New(), []string{three[0], three[0]}, "twice"},
		{"no port", "h1", memfs.New(), []string{"h1"}, "missing port"},
		{"port 0", "h1:0", memfs.New(), []string{"h1:0"}, "port"},
		{"no host", ":1", memfs.New(), []string{":1"}, "host name of 0 bytes"},
		{"too many", "h:1", memfs.New(), many(FoundersMax + 1), "16 founders"},
	} {
		_, err := OpenIdentity(f.config(c.fs, c.self, c.list))
		if c.list == nil {
			c.want = "0 founders"
		}
		if !errors.Is(err, ErrFounders) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
	if _, err := OpenIdentity(f.config(memfs.New(), "h:1", many(FoundersMax))); err != nil {
		t.Error(err)
	}
	if err := CheckAlone(several, "var/data"); !errors.Is(err, ErrFounders) {
		t.Errorf("alone: %v", err)
	}
	if err := errors.Join(CheckAlone(alone, "var/data"), CheckAlone(memfs.New(), "var/data")); err != nil {
		t.Error(err)
	}
}

func many(n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("h:%d", i+1))
	}
	return list
}

func identityFile(t testing.TB, fs vfs.FS) []byte {
	t.Helper()
	file, err := fs.Open("var/data/identity")
	if err != nil {
		t.Fatal(err)
	}
	size, err := file.Size()
	b := make([]byte, size)
	_, err2 := file.ReadAt(b, 0)
	if err := errors.Join(err, err2, file.Close()); err != nil {
		t.Fatal(err)
	}
	return b
}

func setIdentityFile(t testing.TB, fs vfs.FS, b []byte) {
	t.Helper()
	setFile(t, fs, "var/data/identity", b)
}

func setFile(t testing.TB, fs vfs.FS, name string, b []byte) {
	t.Helper()
	if err := replaceFile(fs, name, b); err != nil {
		t.Fatal(err)
	}
}

// TestIdentityDamage: each flipped bit and each missing byte is noticed, and so is what another version wrote.
func TestIdentityDamage(t *testing.T) {
	fs := memfs.New()
	f := newFounders(t, 7)
	f.mustStart(fs, three[0])
	whole := identityFile(t, fs)
	for at := range whole {
		for _, b := range [][]byte{whole[:at], append(append([]byte(nil), whole[:at]...), append([]byte{whole[at] ^ 1}, whole[at+1:]...)...)} {
			setIdentityFile(t, fs, b)
			if _, err := f.start(fs, three[0]); !errors.Is(err, ErrDamage) {
				t.Fatalf("%q: %v", b, err)
			}
		}
	}
	record, err := decodeIdentity("identity", whole)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(r *identityRecord)
		want   error
	}{
		{func(r *identityRecord) { r.Version = 2 }, ErrNewerFormat},
		{func(r *identityRecord) { r.Version = 0 }, ErrDamage},
		{func(r *identityRecord) { r.Node = 4 }, ErrDamage},
		{func(r *identityRecord) { r.Disk = meta.ID{} }, ErrDamage},
		{func(r *identityRecord) { r.Started = true }, ErrDamage},
		{func(r *identityRecord) { r.Cluster = meta.ID{1} }, ErrDamage},
		{func(r *identityRecord) { r.Cluster, r.Disks = meta.ID{1}, []meta.ID{{1}, {2}, {3}} }, ErrDamage},
	} {
		changed := *record
		c.change(&changed)
		setIdentityFile(t, fs, encodeIdentity(&changed))
		if _, err := f.start(fs, three[0]); !errors.Is(err, c.want) {
			t.Errorf("%+v: got %v, want %v", changed, err, c.want)
		}
	}
}

// TestStateLost: a founder that has lost its state file, or the knowledge of its cluster, does not start.
func TestStateLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := memfs.New()
		f := newFounders(t, 8)
		i := f.mustStart(fs, three[0])
		blank := identityFile(t, fs)
		f.mustStart(memfs.New(), three[1])
		f.mustStart(memfs.New(), three[2])
		if err := i.Found(t.Context(), f.ask); err != nil {
			t.Fatal(err)
		}
		f.mustStart(fs, three[0]) // the state file was not made yet
		for range 2 {
			if err := i.NoteStarted(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.start(fs, three[0]); !errors.Is(err, ErrDamage) {
			t.Errorf("without a state file: %v", err)
		}
		state, err := fs.Create("var/data/state-0000000000000001")
		if err != nil {
			t.Fatal(err)
		}
		if err := state.Close(); err != nil {
			t.Fatal(err)
		}
		f.mustStart(fs, three[0])
		setIdentityFile(t, fs, blank)
		if _, err := f.start(fs, three[0]); !errors.Is(err, ErrDamage) {
			t.Errorf("without the cluster: %v", err)
		}
	})
}
