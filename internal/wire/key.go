package wire

import "strconv"

// Key is a Kafka API key.
type Key int16

// The APIs that this package knows how to frame.
const (
	KeyProduce         Key = 0
	KeyFetch           Key = 1
	KeyListOffsets     Key = 2
	KeyMetadata        Key = 3
	KeyFindCoordinator Key = 10
	KeyApiVersions     Key = 18
	KeyCreateTopics    Key = 19
	KeyDeleteTopics    Key = 20
	KeyDeleteRecords   Key = 21
	KeyInitProducerID  Key = 22
	KeyElectLeaders    Key = 43
)

// DecodeAmplification is the most that decoding allocates for each byte of a body, beside a few KiB. kmsg turns one
// unknown tagged field of three bytes into a map of 336, in a struct that may have had one byte itself: that is the most
// that a hostile frame gets.
const DecodeAmplification = 100

// The bounds of a request frame, in bytes after the length field.
//
// Half a MiB times DecodeAmplification stays below 64 MiB, and still holds a fetch of 15,000 partitions or 10,000 topic
// names of 50 bytes.
//
// Where a response is much larger than its request the bound is lower: a topic of ten bytes comes back with 1 KiB of
// settings, the coordinator of a key of one byte with 80 bytes.
const (
	listBytesMax   = 512 << 10
	createBytesMax = 128 << 10
	shortBytesMax  = 64 << 10 // no more than a client id (at most 32 KiB) and a few short fields, or short keys
)

// api is what framing needs to know of an API.
type api struct {
	name     string
	flexible int16 // the first version with compact lengths and tagged fields (KIP-482)
	bytesMax int   // 0: the caller's own bound
}

func (k Key) api() (api, bool) {
	switch k {
	case KeyProduce:
		return api{"Produce", 9, 0}, true
	case KeyFetch:
		return api{"Fetch", 12, listBytesMax}, true
	case KeyListOffsets:
		return api{"ListOffsets", 6, listBytesMax}, true
	case KeyMetadata:
		return api{"Metadata", 9, listBytesMax}, true
	case KeyFindCoordinator:
		return api{"FindCoordinator", 3, shortBytesMax}, true
	case KeyApiVersions:
		return api{"ApiVersions", 3, shortBytesMax}, true
	case KeyCreateTopics:
		return api{"CreateTopics", 5, createBytesMax}, true
	case KeyDeleteTopics:
		return api{"DeleteTopics", 4, listBytesMax}, true
	case KeyDeleteRecords:
		return api{"DeleteRecords", 2, listBytesMax}, true
	case KeyInitProducerID:
		return api{"InitProducerId", 2, shortBytesMax}, true
	case KeyElectLeaders:
		return api{"ElectLeaders", 2, listBytesMax}, true
	}
	return api{}, false
}

// String is the API's name in the protocol, or its number when it is not known here.
func (k Key) String() string {
	if a, ok := k.api(); ok {
		return a.name
	}
	return "API key " + strconv.Itoa(int(k))
}

// Flexible tells whether requests and responses of this version have compact lengths and tagged fields (KIP-482).
func (k Key) Flexible(version int16) bool {
	a, ok := k.api()
	return ok && version >= a.flexible
}
