package meta

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// DeletedNamesMax is the number of deletions that are remembered with the name and the id of the topic: 3 MiB with
// the longest names.
const DeletedNamesMax = 10_000

// deletion is a topic that was deleted. It never changes.
type deletion struct {
	name string
	id   ID
	time int64 // ms, of the clock of the proposer
}

// deletions are the topics that were deleted, as a View shows them.
type deletions struct {
	names index[*deletion] // by name, of each name the last one
	// before is the latest time of the deletions that are not remembered any more, 0 when there are none.
	before int64
	groups index[groups] // of all deleted topics, ascending; neighbours are one
}

// groups are the group ids from first to last.
type groups struct{ first, last uint64 }

// DeletedAt says when a topic of this name was last deleted, in milliseconds of the wall clock of whoever proposed it,
// which may have been wrong; ok is false when that never happened. Of more than DeletedNamesMax deletions the oldest are
// not known by name any more: every name that is not among the others then counts as deleted at the latest time of
// those.
func (v *View) DeletedAt(name string) (ms int64, ok bool) {
	if p, found := v.deleted.findName(name); found {
		return v.deleted.names.at(p).time, true
	}
	return v.deleted.before, v.deleted.before > 0
}

// GroupDeleted says whether a group was a partition of a topic that is deleted. It is false for a group that was not
// given out yet.
func (v *View) GroupDeleted(group uint64) bool {
	_, found := v.deleted.findGroup(group)
	return found
}

// findName returns where the last deletion of a topic of this name is or would be.
func (d *deletions) findName(name string) (place, bool) {
	return d.names.find(func(made *deletion) int { return strings.Compare(made.name, name) })
}

// findGroup returns where the deleted groups that this one is among are or would be.
func (d *deletions) findGroup(group uint64) (place, bool) {
	return d.groups.find(func(g groups) int {
		switch {
		case g.last < group:
			return -1
		case g.first > group:
			return 1
		}
		return 0
	})
}

// add takes note of a deletion by its name.
func (d *deletions) add(made *deletion) {
	p, found := d.findName(made.name)
	if found {
		d.names = d.names.removed(p)
		p, _ = d.findName(made.name)
	}
	d.names = d.names.inserted(p, made)
}

// drop forgets the oldest deletion, of which only its time remains.
func (d *deletions) drop(oldest *deletion) {
	d.before = max(d.before, oldest.time)
	if p, found := d.findName(oldest.name); found && d.names.at(p) == oldest {
		d.names = d.names.removed(p)
	}
}

// addGroups takes note of the groups of a deleted topic.
func (d *deletions) addGroups(partitions []Partition) {
	run := groups{partitions[0].Group, partitions[0].Group}
	for _, p := range partitions[1:] {
		if p.Group != run.last+1 {
			d.addRun(run)
			run.first = p.Group
		}
		run.last = p.Group
	}
	d.addRun(run)
}

// addRun takes note of deleted groups, and makes them one with those that end before or begin behind them.
func (d *deletions) addRun(run groups) {
	if p, found := d.findGroup(run.first - 1); found {
		run.first = d.groups.at(p).first
		d.groups = d.groups.removed(p)
	}
	if p, found := d.findGroup(run.last + 1); found {
		run.last = d.groups.at(p).last
		d.groups = d.groups.removed(p)
	}
	p, _ := d.findGroup(run.first)
	d.groups = d.groups.inserted(p, run)
}

// bodyDeletions is the part of the body that tells of deleted topics.
type bodyDeletions struct {
	Deleted       []bodyDeletion `json:"deleted"` // oldest first
	DeletedBefore int64          `json:"deleted_before"`
	DeletedGroups []bodyGroups   `json:"deleted_groups"`
}

type bodyDeletion struct {
	Name string `json:"name"`
	ID   ID     `json:"id"`
	Time int64  `json:"time"`
}

type bodyGroups struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

func (b *bodyDeletions) isEmpty() bool {
	return len(b.Deleted) == 0 && b.DeletedBefore == 0 && len(b.DeletedGroups) == 0
}

func (s *State) bodyDeletions() bodyDeletions {
	b := bodyDeletions{
		Deleted:       make([]bodyDeletion, len(s.deletions)),
		DeletedBefore: s.view.deleted.before,
		DeletedGroups: []bodyGroups{}, // not null when there is none
	}
	for i, d := range s.deletions {
		b.Deleted[i] = bodyDeletion{Name: d.name, ID: d.id, Time: d.time}
	}
	for _, g := range s.view.deleted.groups.all() {
		b.DeletedGroups = append(b.DeletedGroups, bodyGroups{First: g.first, Last: g.last})
	}
	return b
}

// addDeletions reads what bodyDeletions wrote, but for the bounds of the groups. The topics must be there.
func (s *State) addDeletions(b *bodyDeletions) error {
	if len(b.Deleted) > DeletedNamesMax || b.DeletedBefore < 0 {
		return fmt.Errorf("%d deletions, and those before %d", len(b.Deleted), b.DeletedBefore)
	}
	for _, d := range b.Deleted {
		if err := CheckTopicName(d.Name); err != nil {
			return fmt.Errorf("deleted topic: %w", err)
		}
		if _, exists := s.view.ByID(d.ID); exists || s.deletedIDs[d.ID] || d.ID == (ID{}) {
			return fmt.Errorf("deleted topic %q: id %x is 0 or not its own", d.Name, d.ID)
		}
		s.deletedIDs[d.ID] = true
		s.deletions = append(s.deletions, &deletion{name: d.Name, id: d.ID, time: d.Time})
	}
	names := slices.Clone(s.deletions)
	slices.SortStableFunc(names, func(a, b *deletion) int { return strings.Compare(a.name, b.name) })
	last := names[:0]
	for i, d := range names {
		if i == len(names)-1 || names[i+1].name != d.name {
			last = append(last, d)
		}
	}
	if !slices.IsSortedFunc(b.DeletedGroups, func(a, b bodyGroups) int { return cmp.Compare(a.First, b.First) }) {
		return errors.New("deleted groups are not ascending")
	}
	deleted := make([]groups, len(b.DeletedGroups))
	for i, g := range b.DeletedGroups {
		deleted[i] = groups{g.First, g.Last}
	}
	s.view.deleted = deletions{names: newIndex(last), before: b.DeletedBefore, groups: newIndex(deleted)}
	return nil
}
