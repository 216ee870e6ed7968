package lossy

import (
	"errors"
	"fmt"
	"strings"
)

// Fault is a kind of fault.
type Fault uint8

// The kinds of fault. A cut ends both connections, the client's and the broker's, half of the time in good order and
// half of the time with a reset.
const (
	SwallowCut   Fault = iota // an answer does not arrive, then a cut
	SwallowHold               // an answer does not arrive, nor any after it, until the client hangs up
	CutRequest                // a request arrives in part, then a cut
	CutAnswer                 // an answer arrives in part, then a cut
	DelayRequest              // a request, and so all after it, comes later
	DelayAnswer               // an answer, and so all after it, comes later
	PieceRequest              // a request comes in pieces
	PieceAnswer               // an answer comes in pieces
	faults
)

var faultNames = [faults]string{
	"answers swallowed and cut", "answers swallowed and held", "requests cut", "answers cut",
	"requests delayed", "answers delayed", "requests in pieces", "answers in pieces",
}

// String says what happened, in the plural, for a line of counts.
func (f Fault) String() string {
	if f >= faults {
		return fmt.Sprintf("fault %d", uint8(f))
	}
	return faultNames[f]
}

// Faults returns every kind.
func Faults() []Fault {
	all := make([]Fault, faults)
	for i := range all {
		all[i] = Fault(i)
	}
	return all
}

// Rates holds the chance of each Fault to meet a request or an answer, 0 to 1. SwallowCut, SwallowHold and CutAnswer
// exclude each other: their sum is at most 1. Whatever is neither swallowed nor cut can be delayed and in pieces.
type Rates [faults]float64

func (r Rates) check() error {
	for f, rate := range r {
		if !(rate >= 0 && rate <= 1) { // NaN is neither
			return fmt.Errorf("rate of %v: %v is outside 0 to 1", Fault(f), rate)
		}
	}
	if r[SwallowCut]+r[SwallowHold]+r[CutAnswer] > 1 {
		return errors.New("the rates of what ends an answer sum up to more than 1")
	}
	return nil
}

// Counts holds how often each Fault has happened.
type Counts [faults]int64

// Plus returns the sum.
func (c Counts) Plus(d Counts) Counts {
	for f := range c {
		c[f] += d[f]
	}
	return c
}

// String names every kind with its count, in one line.
func (c Counts) String() string {
	var parts []string
	for f, n := range c {
		parts = append(parts, fmt.Sprintf("%v %d", Fault(f), n))
	}
	return strings.Join(parts, ", ")
}
