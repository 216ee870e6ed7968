package server

import (
	"context"

	"github.com/oncemq/oncemq/internal/meta"
)

// finder finds the topics of one request. Before it says that there is none it makes sure, once, that this node is not
// behind the others: clients take that for final.
type finder struct {
	server *Server
	ctx    context.Context
	view   *meta.View
	// refreshed: this node has asked. unsure: it has not learned what is committed, and nothing is known not to exist.
	refreshed, unsure bool
}

func (s *Server) finder(ctx context.Context) finder {
	return finder{server: s, ctx: ctx, view: s.node.Topics()}
}

// byName finds a topic; nil: there is none, or unsure is set.
func (f *finder) byName(name string) *meta.Topic {
	topic, ok := f.view.ByName(name)
	if !ok && f.refresh() {
		topic, _ = f.view.ByName(name)
	}
	return topic
}

// byID is byName for an id.
func (f *finder) byID(id [16]byte) *meta.Topic {
	topic, ok := f.view.ByID(id)
	if !ok && f.refresh() {
		topic, _ = f.view.ByID(id)
	}
	return topic
}

// refresh brings the view up to date, and says whether it may show more now. It does so once.
func (f *finder) refresh() bool {
	if f.refreshed {
		return false
	}
	f.refreshed = true
	f.unsure = f.server.node.Refresh(f.ctx) != nil
	f.view = f.server.node.Topics()
	return true
}

// absent is the code for a topic that was not found: absent, or unsure when it may exist.
func (f *finder) absent(absent, unsure code) code {
	if f.unsure {
		return unsure
	}
	return absent
}

// unsureText is what a person is told of a topic that may exist.
const unsureText = "this node cannot find out at the moment whether the topic exists"
