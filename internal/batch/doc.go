// Package batch reads, checks and places a record batch of format v2 in its bytes, without decoding the records.
//
// The bytes of a batch are the client's from the socket to the disk to the consumer. The broker writes two fields
// of the header, baseOffset and partitionLeaderEpoch; the batch's CRC covers neither, so that nothing is computed
// or copied again. The layout is Kafka's (KIP-98), big-endian:
//
//	at  size  field
//	 0     8  baseOffset            a client sends 0, the broker writes the real one
//	 8     4  batchLength           bytes after this field; 49 at least, the rest of the header
//	12     4  partitionLeaderEpoch  the broker writes its Raft term
//	16     1  magic                 2
//	17     4  crc                   CRC-32C of everything from attributes to the end
//	21     2  attributes            bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
//	23     4  lastOffsetDelta       offset, and sequence, of the last record minus those of the first
//	27     8  baseTimestamp
//	35     8  maxTimestamp
//	43     8  producerId            -1: none
//	51     2  producerEpoch         -1: none
//	53     4  baseSequence          of no meaning without a producer
//	57     4  recordCount
//	61        records
//
// Invariants of a batch that CheckProduce or CheckStored let pass, with header h:
//
//	(B1) HeaderSize <= h.Size <= the bytes given, and the CRC is that of those h.Size bytes
//	(B2) 1 <= h.Count == h.LastOffsetDelta + 1
//	(B3) producer id, epoch and base sequence are all >= 0, or id and epoch are -1
//	(B4) 0 <= h.BaseOffset <= MaxBaseOffset, so that h.NextOffset() does not overflow
//
// Path of the data: the server calls CheckProduce on the bytes of a produce request; the partition decides on
// Header.Stamp and calls SetPlace; the log writes the bytes as they are, and CheckStored reads them back.
package batch
