package server

import (
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The most that an ApiVersions response has on the wire, beside and for each row.
const (
	apiVersionsBytes    = 16
	apiVersionsRowBytes = 8
)

// apiVersions answers ApiVersions (KIP-35), version 0 to 4, from the dispatch table.
func (s *Server) apiVersions(c *call, req *kmsg.ApiVersionsRequest) error {
	return c.reply(apiVersionsBytes+len(s.apis)*apiVersionsRowBytes, func() kmsg.Response {
		resp := kmsg.NewPtrApiVersionsResponse()
		if c.version() >= 3 && !(softwareWord(req.ClientSoftwareName) && softwareWord(req.ClientSoftwareVersion)) {
			resp.ErrorCode = int16(codeInvalidRequest)
			return resp
		}
		for _, a := range s.apis {
			resp.ApiKeys = append(resp.ApiKeys, apiVersionsRow(a))
		}
		return resp
	})
}

// unsupportedApiVersions answers an ApiVersions request of a version that is not served, whose body cannot be read: in
// the encoding of version 0, which every client can read, with the row that tells it which versions to use (KIP-511).
func unsupportedApiVersions(c *call, a api) error {
	c.prefix.Version = 0
	return c.reply(apiVersionsBytes+apiVersionsRowBytes, func() kmsg.Response {
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.ErrorCode = int16(codeUnsupportedVersion)
		resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{apiVersionsRow(a)}
		return resp
	})
}

func apiVersionsRow(a api) kmsg.ApiVersionsResponseApiKey {
	row := kmsg.NewApiVersionsResponseApiKey()
	row.ApiKey, row.MinVersion, row.MaxVersion = int16(a.key), a.min, a.max
	return row
}

// softwareWord tells whether s can be the name or the version of client software (KIP-511): letters, digits, dots and
// hyphens, beginning and ending with a letter or a digit.
func softwareWord(s string) bool {
	for i := range len(s) {
		switch b := s[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		case (b == '.' || b == '-') && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}
