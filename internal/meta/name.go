package meta

import (
	"cmp"
	"fmt"
)

// TopicNameMax is the longest topic name in bytes, as in Kafka: a directory of such a name and a partition number fits
// into what file systems allow.
const TopicNameMax = 249

// CheckTopicName returns an error that wraps ErrInvalidName and tells what is wrong with a name: Kafka allows 1 to 249
// of the characters a-z, A-Z, 0-9, '.', '_' and '-', but neither "." nor "..".
func CheckTopicName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case name == "." || name == "..":
		return fmt.Errorf("%w: %q is not allowed", ErrInvalidName, name)
	case len(name) > TopicNameMax:
		return fmt.Errorf("%w: it has %d bytes, allowed are %d", ErrInvalidName, len(name), TopicNameMax)
	}
	for i := range len(name) {
		if c := name[i]; !allowedInName(c) {
			return fmt.Errorf("%w: %q has %q at byte %d, allowed are letters and digits of ASCII, '.', '_' and '-'",
				ErrInvalidName, name, c, i)
		}
	}
	return nil
}

// CheckReserved returns an error that wraps ErrInvalidName for the names of topics that Kafka's brokers keep their own
// state in. A client must not make them: what it put there would later be read as the broker's.
func CheckReserved(name string) error {
	switch name {
	case "__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata", "__remote_log_metadata":
		return fmt.Errorf("%w: %q is reserved for brokers", ErrInvalidName, name)
	}
	return nil
}

func allowedInName(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}

// compareNames orders names byte by byte with '.' counted as '_'. Names that compare equal are the same in Kafka's
// metric names, so only one of them may exist; and one order serves to find both a name and what it collides with.
func compareNames(a, b string) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x == '.' {
			x = '_'
		}
		if y == '.' {
			y = '_'
		}
		if x != y {
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a), len(b))
}
