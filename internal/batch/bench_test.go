package batch

import (
	"fmt"
	"testing"
)

func BenchmarkParseHeader(b *testing.B) {
	data := seal(sent())
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := ParseHeader(data); !ok {
			b.Fatal("no header")
		}
	}
}

func BenchmarkCheckProduce(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			records := sent()
			records.Records = make([]byte, size-HeaderSize)
			data := seal(records)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, fault := CheckProduce(data); fault != FaultNone {
					b.Fatal(fault)
				}
			}
		})
	}
}

func BenchmarkSetPlace(b *testing.B) {
	data := seal(sent())
	for b.Loop() {
		SetPlace(data, 12, 3)
	}
}
