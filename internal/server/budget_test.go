package server

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// taker takes bytes in a goroutine of its own.
type taker struct {
	l     loan
	ok    bool
	ended chan struct{}
	abort chan struct{}
}

func startTaking(b *budget, bytes int64) *taker {
	k := &taker{ended: make(chan struct{}), abort: make(chan struct{})}
	go func() {
		k.l, k.ok = b.take(bytes, k.abort, nil)
		close(k.ended)
	}()
	synctest.Wait()
	return k
}

// bound changes the bound of a budget.
func (b *budget) bound(bytesMax int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytesMax = bytesMax
}

// held is how much is lent.
func (b *budget) held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lent
}

// waiting is how many wait.
func (b *budget) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// state prints who of takers has been lent something, and how much is lent.
func (b *budget) state(takers ...*taker) string {
	s := ""
	for _, k := range takers {
		switch {
		case !closed(k.ended):
			s += "waits "
		case !k.ok:
			s += "gone "
		default:
			s += fmt.Sprintf("%d ", k.l.bytes)
		}
	}
	return fmt.Sprintf("%s/%d", s, b.lent)
}

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{bytesMax: 100}
		want := func(want string, takers ...*taker) {
			t.Helper()
			synctest.Wait()
			if got := b.state(takers...); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		none := startTaking(b, -5)
		first, second := startTaking(b, 60), startTaking(b, 50)
		small, huge := startTaking(b, 1), startTaking(b, 1000)
		after := startTaking(b, 10)
		want("0 60 waits waits waits waits /60", none, first, second, small, huge, after) // in order, though the small one would fit
		first.l.shrink(70)                                                                // never more
		first.l.shrink(50)
		want("50 50 waits waits waits /100", first, second, small, huge, after)
		close(small.abort)
		want("50 50 gone waits waits /100", first, second, small, huge, after)
		first.l.giveBack()
		first.l.giveBack()
		want("0 50 gone waits waits /50", first, second, small, huge, after)
		second.l.giveBack()
		want("100 waits /100", huge, after) // more than there is passes alone
		close(after.abort)
		want("100 gone /100", huge, after)
		huge.l.giveBack()
		none.l.giveBack()
		want("gone /0", after)
		first, second, small = startTaking(b, 60), startTaking(b, 50), startTaking(b, 40)
		close(second.abort)
		want("60 gone 40 /100", first, second, small) // whose turn it is when the one before it is gone
	})
}

func TestBudgetLendsSome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{bytesMax: 100}
		var got []int64
		var loans []loan
		for _, want := range []int64{20, 100, 100, 1, 0, -7} {
			l := b.some(want)
			loans, got = append(loans, l), append(got, l.bytes)
		}
		if s := fmt.Sprint(got); s != "[20 40 20 1 0 0]" {
			t.Errorf("lent %s", s)
		}
		waits := startTaking(b, 50)
		if l := b.some(10); l.bytes != 0 {
			t.Errorf("%d bytes are lent before somebody who waits", l.bytes)
		}
		for i := range loans {
			loans[i].giveBack()
		}
		<-waits.ended
		waits.l.giveBack()
	})
}

func TestBudgetSaysWhenItIsScarce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{bytesMax: 100}
		crowded := b.crowded()
		if crowded != b.crowded() {
			t.Error("two channels for the same event")
		}
		l, _ := b.take(75, nil, nil)
		if b.scarce() {
			t.Error("scarce with a quarter left")
		}
		more, _ := b.take(1, nil, nil)
		if !b.scarce() || closed(crowded) {
			t.Error("not scarce, or crowded without anybody waiting")
		}
		more.giveBack()
		waits := startTaking(b, 90)
		if !b.scarce() || !closed(crowded) || !closed(b.crowded()) {
			t.Error("not scarce or not crowded while somebody waits")
		}
		l.giveBack()
		<-waits.ended
		waits.l.giveBack()
		if b.scarce() || closed(b.crowded()) {
			t.Error("scarce or crowded when all is given back")
		}
	})
}

// Whatever many do at once: no more is lent than there is, everybody has a turn, and in the end all is there again.
func TestBudgetOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bytesMax, goroutines, rounds = 1000, 50, 40
		b := &budget{bytesMax: bytesMax}
		served := 0
		var group sync.WaitGroup
		for i := range goroutines {
			rng := rand.New(rand.NewPCG(5, uint64(i)))
			group.Go(func() {
				for range rounds {
					var l loan
					ok := true
					abort := make(chan struct{})
					switch rng.IntN(3) {
					case 0:
						l = b.some(rng.Int64N(bytesMax))
					case 1:
						timer := time.AfterFunc(time.Duration(rng.IntN(100)), func() { close(abort) })
						defer timer.Stop()
						fallthrough
					default:
						l, ok = b.take(rng.Int64N(2*bytesMax), abort, nil)
					}
					time.Sleep(time.Duration(rng.IntN(100)))
					b.mu.Lock()
					if b.lent > bytesMax || b.lent < l.bytes || !ok && l.bytes > 0 {
						t.Errorf("%d bytes are lent, %d of them here, %v", b.lent, l.bytes, ok)
					}
					served++
					b.mu.Unlock()
					l.shrink(l.bytes / 2)
					l.giveBack()
				}
			})
		}
		group.Wait()
		if served != goroutines*rounds || b.lent != 0 || len(b.queue) > 0 {
			t.Errorf("%d of %d had their turn, %d bytes are lent, %d wait", served, goroutines*rounds, b.lent, len(b.queue))
		}
	})
}
