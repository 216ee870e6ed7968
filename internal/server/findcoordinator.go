package server

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The kinds of coordinator that a client may look for.
const (
	coordinatorGroup       = 0
	coordinatorTransaction = 1
)

// findCoordinator answers FindCoordinator, version 0 to 6. No node coordinates anything, and no answer may be
// retriable: a client would ask again for a minute before it told its user.
func (s *Server) findCoordinator(c *call, req *kmsg.FindCoordinatorRequest) error {
	code, text := codeInvalidRequest, fmt.Sprintf("coordinator type %d is not supported", req.CoordinatorType)
	switch req.CoordinatorType {
	case coordinatorGroup:
		text = "consumer groups are not supported yet: assign partitions in the client"
	case coordinatorTransaction:
		code = codeTransactionalIDNotAllowed
		text = "transactions are not supported: use an idempotent producer without a transactional.id"
	}
	const response, row = 32, 32 // more than the fixed parts of each
	size := response + len(text)
	for _, key := range req.CoordinatorKeys {
		size += row + len(key) + len(text)
	}
	return c.reply(size, func() kmsg.Response {
		resp := kmsg.NewPtrFindCoordinatorResponse()
		if c.version() < 4 {
			resp.ErrorCode, resp.ErrorMessage = int16(code), &text
			resp.NodeID, resp.Port = -1, -1
		}
		resp.Coordinators = make([]kmsg.FindCoordinatorResponseCoordinator, 0, len(req.CoordinatorKeys))
		for _, key := range req.CoordinatorKeys {
			row := kmsg.NewFindCoordinatorResponseCoordinator()
			row.Key, row.ErrorCode, row.ErrorMessage = key, int16(code), &text
			row.NodeID, row.Port = -1, -1
			resp.Coordinators = append(resp.Coordinators, row)
		}
		return resp
	})
}
