package founding

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/vfs"
)

// FoundersMax is the largest number of nodes that may found a cluster together: each of them votes on every change of the
// metadata.
const FoundersMax = 15

// The ways in which a data directory does not fit what the operator wants of it. Nothing was changed.
var (
	// ErrFounders: the list of founders is unusable, or not the one with which this data directory was first used.
	ErrFounders = errors.New("the founders do not fit")
	// ErrEmptied: this data directory is empty, but the cluster exists and knows this node with another one.
	ErrEmptied = errors.New("data directory was emptied")
	// ErrDamage: the identity, or the state file beside it, is not what was stored.
	ErrDamage = errors.New("data directory is damaged")
	// ErrNewerFormat: the identity was written by a newer version.
	ErrNewerFormat = errors.New("data directory is of a newer format")
)

const (
	identityName     = "identity"
	identityVersion  = 1
	identityBytesMax = 64 << 10 // also of a question and of an answer

	temporarySuffix = ".tmp"
	statePrefix     = "state-" // of the state file's names
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// IdentityConfig says which founder a node is, and where that is kept.
type IdentityConfig struct {
	FS     vfs.FS
	Dir    string    // the data directory, locked by the caller
	Random io.Reader // cryptographically secure
	// Self is this node's entry among the Founders. An entry is host:port, where the founders reach each other; the id of
	// a node is its place in the list, from 1. All founders have the same list, for ever.
	Self     string
	Founders []string
	Logger   *slog.Logger
}

// Founder is a node that has founded the cluster, as the others see it.
type Founder struct {
	Node    uint32
	Address string
	// Disk was drawn when the founder first used its data directory: another one in its place is somebody else.
	Disk [16]byte
}

// Identity is who this node is among the founders of a cluster, and the file that keeps it: see founding.go. Its methods may
// be called at the same time, but for Found, which one goroutine calls.
type Identity struct {
	cfg IdentityConfig

	mu     sync.Mutex
	record identityRecord
	// failed is the error of the last write. What the file holds is unknown then, and until a write succeeds nothing is
	// said about it.
	failed error
	heard  heard
	// refused is what askers were last refused for, by the number that they gave: each reason is logged once.
	refused map[uint32]string
}

// identityRecord is the file's content, and what founders tell each other.
type identityRecord struct {
	Version  int      `json:"version"`
	Node     uint32   `json:"node"`
	Founders []string `json:"founders"`
	Disk     meta.ID  `json:"disk"`
	// Cluster and Disks, those of all founders in the order of the list, are there once the cluster is founded.
	Cluster meta.ID   `json:"cluster,omitzero"`
	Disks   []meta.ID `json:"disks,omitempty"`
	// Started: the state file of this node was made; one that is missing is lost.
	Started bool `json:"started,omitempty"`
}

func (r *identityRecord) founded() bool { return r.Cluster != meta.ID{} }

// check says what no founder writes.
func (r *identityRecord) check() error {
	if err := checkFounders(r.Founders); err != nil {
		return err
	}
	n := len(r.Founders)
	if r.Node < 1 || r.Node > uint32(n) || r.Disk == (meta.ID{}) {
		return fmt.Errorf("node %d of %d founders, disk %x", r.Node, n, r.Disk)
	}
	if !r.founded() {
		if len(r.Disks) > 0 || r.Started {
			return errors.New("disks without a cluster")
		}
		return nil
	}
	if len(r.Disks) != n || slices.Contains(r.Disks, meta.ID{}) {
		return fmt.Errorf("%d disks of %d founders", len(r.Disks), n)
	}
	return nil
}

func checkFounders(founders []string) error {
	if len(founders) < 1 || len(founders) > FoundersMax {
		return fmt.Errorf("%d founders, allowed are 1 to %d", len(founders), FoundersMax)
	}
	for i, address := range founders {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return fmt.Errorf("founder %q: %w", address, err)
		}
		if err := meta.CheckHost(host); err != nil {
			return fmt.Errorf("founder %q: %w", address, err)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("founder %q has port %q, allowed are 1 to 65535", address, port)
		}
		if slices.Contains(founders[:i], address) {
			return fmt.Errorf("founder %q stands in the list twice", address)
		}
	}
	return nil
}

// OpenIdentity reads the identity in a data directory, or gives it one: that of a founder whose cluster is not founded yet.
// What it returns is durable, and so are the directories that lead to it. After a full disk (vfs.IsFull) it may be called
// again. Errors: ErrFounders, ErrDamage, ErrNewerFormat, and those of the file system.
func OpenIdentity(cfg IdentityConfig) (*Identity, error) {
	place := slices.Index(cfg.Founders, cfg.Self)
	if err := checkFounders(cfg.Founders); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFounders, err)
	}
	if place < 0 {
		return nil, fmt.Errorf("%w: this node's address %s is not among them: %s", ErrFounders, cfg.Self, listed(cfg.Founders))
	}
	used, err := hasState(cfg.FS, cfg.Dir)
	if err != nil {
		return nil, err
	}
	i := &Identity{cfg: cfg, refused: map[uint32]string{}}
	record, err := readIdentity(cfg.FS, cfg.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && used:
		return nil, fmt.Errorf("%w: %s is the data directory of a cluster of one node, which was not founded by several; "+
			"start it without founders, or give this node an empty directory", ErrFounders, cfg.Dir)
	case errors.Is(err, fs.ErrNotExist):
		if err := i.create(uint32(place) + 1); err != nil {
			return nil, err
		}
		return i, nil
	case err != nil:
		return nil, err
	case !slices.Equal(record.Founders, cfg.Founders) || record.Node != uint32(place)+1:
		return nil, fmt.Errorf("%w: %s belongs to founder %d of %s; it was started as %s of %s", ErrFounders,
			cfg.Dir, record.Node, listed(record.Founders), cfg.Self, listed(cfg.Founders))
	case used && !record.founded():
		return nil, fmt.Errorf("%w: %s has a state file, but its identity does not know the cluster", ErrDamage, cfg.Dir)
	case !used && record.Started:
		return nil, fmt.Errorf("%w: %s has lost its state file, and with it the votes of this node", ErrDamage, cfg.Dir)
	}
	i.record = *record
	if err := vfs.SyncUpwards(cfg.FS, cfg.Dir); err != nil { // a process that was killed may have left the renaming undurable
		return nil, err
	}
	return i, nil
}

// CheckAlone fails with ErrFounders when a data directory has the identity of a founder, and so cannot be used without the
// list of founders; or with the errors of OpenIdentity.
func CheckAlone(fsys vfs.FS, dir string) error {
	record, err := readIdentity(fsys, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: %s belongs to founder %d of %s; it must be started with this list of founders", ErrFounders,
		dir, record.Node, listed(record.Founders))
}

// ReadFounders returns the list of founders to which a data directory belongs; nil: that of a cluster of one. It changes
// nothing. Errors are those of OpenIdentity.
func ReadFounders(fsys vfs.FS, dir string) ([]string, error) {
	record, err := readIdentity(fsys, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return record.Founders, nil
}

// Founded says whether the cluster is founded: before that Cluster is zero and Peers has no disks.
func (i *Identity) Founded() bool {
	r := i.read()
	return r.founded()
}

// Cluster is the id of the cluster.
func (i *Identity) Cluster() [16]byte { return i.read().Cluster }

// Node is this node's place among the founders, from 1.
func (i *Identity) Node() uint32 { return i.read().Node }

// Disk was drawn when this data directory was first used.
func (i *Identity) Disk() [16]byte { return i.read().Disk }

// Peers returns the other founders, ascending. The list is the caller's.
func (i *Identity) Peers() []Founder {
	r := i.read()
	var peers []Founder
	for at, address := range r.Founders {
		peer := Founder{Node: uint32(at) + 1, Address: address}
		if r.founded() {
			peer.Disk = r.Disks[at]
		}
		if peer.Node != r.Node {
			peers = append(peers, peer)
		}
	}
	return peers
}

// NoteStarted takes note, durably, that the state file of this node is made and durable. From then on a data directory
// without one is damaged: a node that has forgotten its votes must not vote again. It is a bug before Founded.
func (i *Identity) NoteStarted() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.record.Started {
		return nil
	}
	next := i.record
	next.Started = true
	return i.write(next)
}

func (i *Identity) read() identityRecord {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.record
}

// create gives an empty data directory its identity.
func (i *Identity) create(node uint32) error {
	record := identityRecord{Version: identityVersion, Node: node, Founders: slices.Clone(i.cfg.Founders)}
	var err error
	if record.Disk, err = i.draw(); err != nil {
		return err
	}
	if err := i.cfg.FS.MkdirAll(i.cfg.Dir); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.write(record); err != nil {
		return err
	}
	return vfs.SyncUpwards(i.cfg.FS, i.cfg.Dir)
}

// draw draws an id that is not zero.
func (i *Identity) draw() (id meta.ID, err error) {
	for id == (meta.ID{}) {
		if _, err := io.ReadFull(i.cfg.Random, id[:]); err != nil {
			return id, fmt.Errorf("draw an id: %w", err)
		}
	}
	return id, nil
}

// write makes a record the identity, durably. After a crash it is there whole, or the one before it. mu is held.
func (i *Identity) write(next identityRecord) error {
	name := filepath.Join(i.cfg.Dir, identityName)
	err := replaceFile(i.cfg.FS, name, encodeIdentity(&next))
	if err == nil {
		err = i.cfg.FS.SyncDir(i.cfg.Dir)
	}
	i.failed = err
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	i.record = next
	return nil
}

// replaceFile gives a file another content, all or nothing. The new name is not durable yet.
func replaceFile(fsys vfs.FS, name string, content []byte) error {
	temporary := name + temporarySuffix
	if err := fsys.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := fsys.Create(temporary)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(content, 0)
	if err == nil {
		err = file.SyncData()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return fsys.Rename(temporary, name)
}

// encodeIdentity is the file: the record as JSON in one line, and the CRC-32C of that line in hexadecimal digits.
func encodeIdentity(r *identityRecord) []byte {
	line := append(mustMarshal(r), '\n')
	return fmt.Appendf(line, "%08x\n", crc32.Checksum(line, castagnoli))
}

// decodeIdentity reads what encodeIdentity wrote. Errors: ErrDamage, ErrNewerFormat.
func decodeIdentity(name string, b []byte) (*identityRecord, error) {
	end := bytes.IndexByte(b, '\n') + 1
	if end == 0 || string(b[end:]) != fmt.Sprintf("%08x\n", crc32.Checksum(b[:end], castagnoli)) {
		return nil, fmt.Errorf("%w: the checksum of %s is wrong", ErrDamage, name)
	}
	var record identityRecord
	if err := decodeVersioned(b[:end], &record); err != nil {
		if errors.Is(err, errNewerVersion) {
			return nil, fmt.Errorf("%w: %s: %w", ErrNewerFormat, name, err)
		}
		return nil, fmt.Errorf("%w: %s: %w", ErrDamage, name, err)
	}
	if err := record.check(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamage, name, err)
	}
	if record.founded() && record.Disks[record.Node-1] != record.Disk {
		return nil, fmt.Errorf("%w: %s: the cluster knows another disk", ErrDamage, name)
	}
	return &record, nil
}

// readIdentity fails with fs.ErrNotExist when there is none.
func readIdentity(fsys vfs.FS, dir string) (*identityRecord, error) {
	name := filepath.Join(dir, identityName)
	file, err := fsys.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read identity: %w", err)
	}
	size, err := file.Size()
	b := make([]byte, min(size, identityBytesMax))
	if err == nil && len(b) > 0 {
		_, err = file.ReadAt(b, 0)
	}
	if err == nil {
		err = file.SyncData()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("read identity %s: %w", name, err)
	}
	return decodeIdentity(name, b)
}

// hasState says whether a node has lived in a directory: what it lives in may hold a lock and a reserve before.
func hasState(fsys vfs.FS, dir string) (bool, error) {
	names, err := fsys.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for a state file: %w", err)
	}
	return slices.ContainsFunc(names, func(name string) bool {
		return strings.HasPrefix(name, statePrefix) && !strings.HasSuffix(name, temporarySuffix)
	}), nil
}

func listed(founders []string) string { return strings.Join(founders, ",") }

var errNewerVersion = errors.New("it is of a newer version of oncemq")

// decodeVersioned reads a JSON object that has a version. One of a newer version is an errNewerVersion, everything else
// that is not known an error.
func decodeVersioned(b []byte, v any) error {
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return err
	}
	if version.Version > identityVersion {
		return fmt.Errorf("%w: %d", errNewerVersion, version.Version)
	}
	if version.Version < identityVersion {
		return fmt.Errorf("version %d", version.Version)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
