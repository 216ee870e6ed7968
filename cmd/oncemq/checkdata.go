package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/oncemq/oncemq/internal/node"
	"github.com/oncemq/oncemq/internal/vfs"
)

func checkDataCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check-data DIR",
		Short: "Look for damage in a data directory",
		Long: `Read a data directory that no broker uses, check everything in it, and print for each partition
whether it would open, what is damaged (file and byte), and what would be lost if the partition
went on without that. Nothing is changed. All of the log is read: a start reads less.

Damage in one partition stops no broker: that partition answers KAFKA_STORAGE_ERROR (56), and
the others work. Without a second copy there are two ways on: restore a backup of the whole
directory, or give up what is damaged with "oncemq accept-loss".

Exit codes: 0 sound; 1 failure; 2 wrong usage; 3 a broker uses the directory; 4 it is of a newer
format; 5 something is damaged.`,
		Example: `  oncemq check-data /var/lib/oncemq
  oncemq check-data /var/lib/oncemq --json | jq '.partitions[] | select(.sound | not)'`,
		Args: one("data directory"),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		endAtSignal()
		return failed(checkData(environment().Out, args[0], asJSON))
	}
	return cmd
}

// endAtSignal has the first signal end the process at once, instead of asking for an end that a command does not look for.
// A crash may come at any moment as well.
func endAtSignal() { signal.Reset(os.Interrupt, syscall.SIGTERM) }

func checkData(out io.Writer, dir string, asJSON bool) error {
	c, err := inspect(dir)
	if err != nil {
		return err
	}
	if asJSON {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		err = e.Encode(c)
	} else {
		_, err = io.WriteString(out, c.String())
	}
	return errors.Join(err, c.verdict())
}

// inspect has the node look at a data directory.
func inspect(dir string) (checked, error) {
	env, err := storage()
	if err != nil {
		return checked{}, err
	}
	found, err := node.Inspect(env, dir)
	if err != nil {
		return checked{}, err
	}
	return checkedOf(dir, found), nil
}

// storage is as much of the node's surroundings as reading a data directory takes.
func storage() (node.Env, error) {
	boot, err := bootID()
	return node.Env{FS: vfs.OS(), Boot: boot}, err
}

// checked is what was found in a data directory, as JSON.
type checked struct {
	Directory  string             `json:"directory"`
	Cluster    string             `json:"cluster"`
	Sound      bool               `json:"sound"`
	Damage     []string           `json:"damage"` // of what all partitions need: no broker starts
	Notes      []string           `json:"notes"`
	Partitions []checkedPartition `json:"partitions"`
}

type checkedPartition struct {
	Topic      string   `json:"topic"`
	Partition  int32    `json:"partition"`
	Directory  string   `json:"directory"`
	Sound      bool     `json:"sound"`
	Opens      bool     `json:"opens"`
	WhyNot     string   `json:"why_not,omitempty"`
	Begin      int64    `json:"begin_offset"`
	End        int64    `json:"end_offset"`
	Segments   int      `json:"segments"`
	Bytes      int64    `json:"bytes"`
	Damage     []damage `json:"damage"`
	Lost       *lost    `json:"would_be_lost"`
	TornBytes  int64    `json:"torn_bytes"`
	Unfinished []string `json:"unfinished"`
	Notes      []string `json:"notes"`
}

type damage struct {
	File   string `json:"file"`
	Byte   int64  `json:"byte"`
	Detail string `json:"detail"`
}

// lost is what a partition would lose that went on without what is damaged.
type lost struct {
	From    int64 `json:"first_offset"` // -1: not known
	Records int64 `json:"records_at_least"`
}

// String is the end of a sentence that says what would be lost.
func (l lost) String() string {
	from := "the first at an offset that is not known"
	if l.From >= 0 {
		from = fmt.Sprintf("the first at offset %d", l.From)
	}
	return fmt.Sprintf("at least %d records, %s", l.Records, from)
}

// checkedOf makes of what the node found what is printed.
func checkedOf(dir string, found node.Inspection) checked {
	c := checked{
		Directory: dir, Cluster: found.Cluster, Damage: append([]string{}, found.Problems...), Notes: append([]string{}, found.Warnings...),
		Partitions: []checkedPartition{},
	}
	for _, g := range found.Groups {
		switch {
		case g.Deleted:
			c.Notes = append(c.Notes, g.Dir+" is of a deleted topic: a start removes it")
			continue
		case g.Topic == "": // raft0: what is wrong with it is damage of the whole node
			for _, w := range g.Warnings {
				c.Notes = append(c.Notes, "raft0: "+w)
			}
			continue
		}
		p := checkedPartition{
			Topic: g.Topic, Partition: g.Partition, Directory: g.Dir, Opens: g.Opens, Sound: g.Opens && len(g.Findings) == 0, WhyNot: g.Why,
			Begin: int64(g.LogStart), End: int64(g.Next), Segments: g.Segments, Bytes: g.Bytes, Damage: []damage{}, TornBytes: g.TornBytes,
			Unfinished: append([]string{}, g.Unfinished...), Notes: append([]string{}, g.Warnings...),
		}
		for _, f := range g.Findings {
			p.Damage = append(p.Damage, damage{f.File, f.Position, f.Detail})
		}
		if g.Salvageable {
			p.Lost = &lost{int64(g.LostFrom), g.LostOffsets}
		}
		c.Partitions = append(c.Partitions, p)
	}
	c.Sound = c.verdict() == nil
	return c
}

func (p checkedPartition) name() string { return fmt.Sprintf("%s/%d", p.Topic, p.Partition) }

// String is what a person reads.
func (c checked) String() string {
	var b strings.Builder
	for _, d := range c.Damage {
		fmt.Fprintf(&b, "DAMAGED, no broker can start: %s\n", d)
	}
	for _, n := range c.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	for _, p := range c.Partitions {
		b.WriteString(p.String())
	}
	return b.String()
}

// String is what a person reads.
func (p checkedPartition) String() string {
	var b strings.Builder
	state := "sound"
	switch {
	case !p.Opens && len(p.Damage) > 0: // which says why
		state = "DAMAGED, cannot be opened"
	case !p.Opens:
		state = "DAMAGED, cannot be opened: " + p.WhyNot
	case !p.Sound:
		state = "DAMAGED, can be opened, but what is damaged cannot be read"
	}
	fmt.Fprintf(&b, "%s: %s\n", p.name(), state)
	fmt.Fprintf(&b, "    offsets from %d to before %d, %d bytes in %d segments, %s\n", p.Begin, p.End, p.Bytes, p.Segments, p.Directory)
	for _, d := range p.Damage {
		fmt.Fprintf(&b, "    damage: %s, byte %d: %s\n", d.File, d.Byte, d.Detail)
	}
	switch {
	case p.Lost != nil:
		fmt.Fprintf(&b, "    without what is damaged would be lost: %v\n", p.Lost)
	case !p.Sound:
		b.WriteString("    it cannot go on without what is damaged: restore a backup\n")
	}
	if p.TornBytes > 0 {
		fmt.Fprintf(&b, "    a start cuts off %d bytes that were never acknowledged\n", p.TornBytes)
	}
	for _, u := range p.Unfinished {
		fmt.Fprintf(&b, "    a start finishes: %s\n", u)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "    note: %s\n", n)
	}
	return b.String()
}

// verdict is an error when something is damaged.
func (c checked) verdict() error {
	damaged := 0
	for _, p := range c.Partitions {
		if !p.Sound {
			damaged++
		}
	}
	switch {
	case len(c.Damage) > 0:
		return fmt.Errorf("%w: no broker can start on %s", node.ErrDamage, c.Directory)
	case damaged > 0:
		return fmt.Errorf("%w: %d of %d partitions", node.ErrDamage, damaged, len(c.Partitions))
	}
	return nil
}
