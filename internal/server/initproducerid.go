package server

import "github.com/twmb/franz-go/pkg/kmsg"

// initProducerID answers InitProducerId (KIP-98, KIP-360), version 0 to 5. It always gives a fresh id with epoch 0,
// also to a producer that names the id and epoch it had: a fresh id is as good, and nothing about it can be stale.
// There are no transactions, and a producer that asks for one must hear so before it sends anything.
func (s *Server) initProducerID(c *call, req *kmsg.InitProducerIDRequest) error {
	const size = 32
	return c.reply(size, func() kmsg.Response {
		resp := kmsg.NewPtrInitProducerIDResponse()
		resp.ProducerID, resp.ProducerEpoch = -1, -1
		switch id := req.TransactionalID; {
		case id != nil && *id == "":
			resp.ErrorCode = int16(codeInvalidRequest)
		case id != nil:
			resp.ErrorCode = int16(codeTransactionalIDNotAllowed)
		case (req.ProducerID == -1) != (req.ProducerEpoch == -1): // both are -1 below version 3
			resp.ErrorCode = int16(codeInvalidRequest)
		default:
			if id, err := s.node.NextProducerID(); err != nil {
				resp.ErrorCode = int16(codeCoordinatorLoadInProgress)
			} else {
				resp.ProducerID, resp.ProducerEpoch = int64(id), 0
			}
		}
		return resp
	})
}
