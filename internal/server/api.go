package server

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/wire"
)

// api is one row of the dispatch table: an API and the versions of it that are served.
type api struct {
	key      wire.Key
	min, max int16
	// handle carries out a request and appends the whole response frame to call.out. It is nil for Produce, whose
	// requests overlap. An error closes the connection.
	handle func(*Server, *call) error
}

// apis is the dispatch table. The answer to ApiVersions is made from it. Handlers reach it as Server.apis: by its own
// name the table would refer to itself.
//
// Produce 0 to 2 are advertised but only refused: librdkafka before 2.8.0 looks for version 0 before it compresses
// (KAFKA-18659).
var apis = []api{
	{wire.KeyProduce, 0, 13, nil},
	{wire.KeyFetch, 4, 17, decoded((*Server).fetch)},
	{wire.KeyListOffsets, 0, 11, decoded((*Server).listOffsets)},
	{wire.KeyMetadata, 0, 13, decoded((*Server).metadata)},
	{wire.KeyFindCoordinator, 0, 6, decoded((*Server).findCoordinator)},
	{wire.KeyApiVersions, 0, 4, decoded((*Server).apiVersions)},
	{wire.KeyCreateTopics, 0, 7, decoded((*Server).createTopics)},
	{wire.KeyDeleteTopics, 0, 6, decoded((*Server).deleteTopics)},
	{wire.KeyDeleteRecords, 0, 2, decoded((*Server).deleteRecords)},
	{wire.KeyInitProducerID, 0, 5, decoded((*Server).initProducerID)},
	{wire.KeyElectLeaders, 0, 2, decoded((*Server).electLeaders)},
}

// call is one request, other than Produce, that is carried out.
type call struct {
	server *Server
	// ctx ends when the server stops and does not wait any longer.
	ctx context.Context
	// stopping is closed when the server begins to stop: whoever waits for something to happen answers now.
	stopping <-chan struct{}
	// aborted is closed when there is nobody to answer any more.
	aborted <-chan struct{}
	prefix  wire.Prefix
	body    []byte
	request *frame // holds body; released as soon as the body is decoded
	working loan   // for what the request was turned into
	// out is the response frame, of which answers holds the memory. It is in the buffer of response when it was large
	// enough to be worth one of its own.
	out      []byte
	response *frame
	answer   loan
}

// errGone ends a call whose connection was closed while it waited for memory.
var errGone error = quiet(errors.New("the connection is closed"))

// version is the version of the request, and of its response.
func (c *call) version() int16 {
	return c.prefix.Version
}

// room makes room in out for a response of at most size bytes, which takes memory bytes while it is made.
func (c *call) room(size int, memory int64) error {
	var ok bool
	if c.answer, ok = c.server.budgets.answers.take(memory-ownBytes, c.aborted, nil); !ok {
		return errGone
	}
	c.buffer(size)
	return nil
}

// buffer has out hold size bytes, if that is worth a buffer of its own.
func (c *call) buffer(size int) {
	if size > outKept {
		c.response = c.server.frames.get(size)
		c.out = c.response.buf[:0]
	}
}

// answerAmplification is how many times the bytes of a response its kmsg structs and its buffer have together at most.
const answerAmplification = 6

// responseHeaderSize is at least what a response frame has before its body.
const responseHeaderSize = 16

// reply appends the response frame. The body has at most size bytes, and is made when there is room for it: nothing but
// what is needed to make it is held while that is waited for.
func (c *call) reply(size int, body func() kmsg.Response) error {
	size += responseHeaderSize
	if err := c.room(size, answerAmplification*int64(size)); err != nil {
		return err
	}
	response := body()
	response.SetVersion(c.version())
	c.out = response.AppendTo(c.prefix.BeginResponse(c.out))
	wire.EndResponse(c.out, 0)
	c.answer.shrink(int64(cap(c.out)) - ownBytes)
	return nil
}

// giveBack ends the call: nothing of it is used any more.
func (c *call) giveBack() {
	c.working.giveBack()
	c.answer.giveBack()
	if c.response != nil {
		c.response.release()
	}
}

// kmsgRequest is a pointer to a kmsg request type.
type kmsgRequest[R any] interface {
	*R
	kmsg.Request
}

// decoded makes a handler of a function that takes a request decoded by kmsg. What is decoded keeps no part of the
// frame, which is released before the function runs: one may wait for minutes.
func decoded[R any, P kmsgRequest[R]](handle func(*Server, *call, P) error) func(*Server, *call) error {
	return func(s *Server, c *call) error {
		request, err := P(new(R)), errGone
		var ok bool
		if c.working, ok = s.budgets.working.take(wire.DecodeAmplification*int64(len(c.body))-ownBytes, c.aborted, nil); ok {
			err = c.prefix.Decode(request, c.body)
		}
		c.body = nil
		c.request.release()
		if err != nil {
			return err
		}
		return handle(s, c, request)
	}
}
