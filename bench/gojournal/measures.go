// The measures: what runs, for how long, and what of it is counted.

package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mit-pdos/go-journal/addr"
	"github.com/mit-pdos/go-journal/buftxn"
	"github.com/mit-pdos/go-journal/common"
	"github.com/mit-pdos/go-journal/wal"
	"github.com/tchajed/goose/machine/disk"
)

// The same numbers as in the other driver.
const (
	objectBytes     = 128
	objectsPerBlock = 31
	bitmaps         = 2
	bitsPerThread   = 510
	threadsMax      = 64
	blocksPerThread = 64
	laps            = 2
	lapsTimeFactor  = 10

	directoryBlocks = 64
	dentryBytes     = 64
	fileBytes       = 100

	deferredBlocks = 4096
	burst          = 256
	stride         = 7919

	operationBlocks = 256
)

// object is the address of one of the objects that lie from block first on.
func object(first, index uint64) addr.Addr {
	return addr.MkAddr(common.Bnum(first+index/objectsPerBlock), index%objectsPerBlock*objectBytes*8)
}

// contents are an object's bytes at its turn: they differ from one turn to the next.
func contents(turn uint64) []byte {
	bytes := make([]byte, objectBytes)
	for i := range bytes {
		bytes[i] = byte(turn)
	}
	for i := 0; i < 8; i++ {
		bytes[i] = byte(turn >> (8 * i))
	}
	return bytes
}

func bit(value bool) []byte {
	if value {
		return []byte{0xff}
	}
	return []byte{0}
}

// setBits sets the bit of that number in each of the bitmaps that all threads share. A bit's buffer carries its
// byte, of which only that bit counts.
func setBits(op *buftxn.BufTxn, number uint64, value bool) {
	for b := uint64(0); b < bitmaps; b++ {
		op.OverWrite(addr.MkBitAddr(common.Bnum(home+b), number), 1, bit(value))
	}
}

func syncCommits(name string, threads int, seconds float64) error {
	if threads > threadsMax {
		return fmt.Errorf("%d threads: at most %d have objects", threads, threadsMax)
	}
	journal, d, err := open(name, home+bitmaps+threadsMax*blocksPerThread)
	if err != nil {
		return err
	}
	var stop, failed atomic.Bool
	var commits atomic.Uint64
	var running sync.WaitGroup
	start, cpu := time.Now(), cpuSeconds()
	for t := uint64(0); t < uint64(threads); t++ {
		running.Add(1)
		go func(t uint64) {
			defer running.Done()
			turn := uint64(0)
			for ; !stop.Load(); turn++ {
				op := buftxn.Begin(journal)
				first := home + bitmaps + t*blocksPerThread
				op.OverWrite(object(first, turn%(blocksPerThread*objectsPerBlock)), objectBytes*8, contents(turn))
				setBits(op, t*bitsPerThread+turn%bitsPerThread, turn/bitsPerThread%2 == 0)
				if !op.CommitWait(true) {
					failed.Store(true)
					return
				}
			}
			commits.Add(turn)
		}(t)
	}
	for {
		time.Sleep(5 * time.Millisecond)
		elapsed := time.Since(start).Seconds()
		wrapped := d.journalBlocks.Load() >= laps*wal.LOGSZ
		if failed.Load() || (elapsed >= seconds && (wrapped || elapsed >= seconds*lapsTimeFactor)) {
			break
		}
	}
	stop.Store(true)
	running.Wait()
	elapsed := time.Since(start).Seconds()
	if failed.Load() {
		return fmt.Errorf("a commit was refused")
	}
	closed(journal, d)
	n := float64(commits.Load())
	figure("commits", n)
	figure("commits_per_second", n/elapsed)
	figure("flushes_per_commit", float64(d.flushes.Load())/n)
	figure("blocks_per_commit", float64(d.blocks.Load())/n)
	figure("journal_blocks_per_commit", float64(d.journalBlocks.Load())/n)
	figure("cpu_us_per_commit", (cpuSeconds()-cpu)*1e6/n)
	figure("log_laps", float64(d.journalBlocks.Load())/float64(wal.LOGSZ))
	return nil
}

func create(commits uint64) error {
	metadata := home + bitmaps + 2*directoryBlocks
	journal, d, err := open("memory", metadata+commits)
	if err != nil {
		return err
	}
	for turn := uint64(0); turn < commits; turn++ {
		op := buftxn.Begin(journal)
		index, bytes := turn%(directoryBlocks*objectsPerBlock), contents(turn)
		op.OverWrite(object(home+bitmaps, index), objectBytes*8, bytes)
		entry := object(home+bitmaps+directoryBlocks, index)
		op.OverWrite(entry, dentryBytes*8, bytes[:dentryBytes])
		setBits(op, turn%(bitsPerThread*threadsMax), turn/(bitsPerThread*threadsMax)%2 == 0)
		data := addr.MkAddr(common.Bnum(metadata+turn), 0)
		op.OverWrite(data, fileBytes*8, bytes[:fileBytes])
		if !op.CommitWait(true) {
			return fmt.Errorf("a commit was refused")
		}
	}
	closed(journal, d)
	n := float64(commits)
	figure("journal_blocks_per_commit", float64(d.journalBlocks.Load())/n)
	figure("blocks_per_commit", float64(d.blocks.Load())/n)
	figure("flushes_per_commit", float64(d.flushes.Load())/n)
	return nil
}

func deferred(threads uint64, seconds float64) error {
	blocksEach := deferredBlocks / threads
	if blocksEach == 0 {
		return fmt.Errorf("%d threads: at most %d have objects", threads, deferredBlocks)
	}
	journal, d, err := open("memory", home+deferredBlocks)
	if err != nil {
		return err
	}
	var failed atomic.Bool
	var commits atomic.Uint64
	var running sync.WaitGroup
	start, cpu := time.Now(), cpuSeconds()
	for t := uint64(0); t < threads; t++ {
		running.Add(1)
		go func(t uint64) {
			defer running.Done()
			turn, first := uint64(0), home+t*blocksEach
			for time.Since(start).Seconds() < seconds {
				for i := 0; i < burst; i++ {
					op := buftxn.Begin(journal)
					index := turn * stride % (blocksEach * objectsPerBlock)
					op.OverWrite(object(first, index), objectBytes*8, contents(turn))
					if !op.CommitWait(false) {
						failed.Store(true)
						return
					}
					turn++
				}
			}
			commits.Add(turn)
		}(t)
	}
	running.Wait()
	if failed.Load() {
		return fmt.Errorf("a commit was refused")
	}
	journal.Flush()
	elapsed := time.Since(start).Seconds()
	closed(journal, d)
	n := float64(commits.Load())
	figure("commits", n)
	figure("commits_per_second", n/elapsed)
	figure("cpu_us_per_commit", (cpuSeconds()-cpu)*1e6/n)
	figure("blocks_per_commit", float64(d.blocks.Load())/n)
	return nil
}

func sequential(operations uint64, each bool) error {
	journal, d, err := open("memory", home+1+operations*operationBlocks)
	if err != nil {
		return err
	}
	start := time.Now()
	for turn := uint64(0); turn < operations; turn++ {
		op := buftxn.Begin(journal)
		op.OverWrite(object(home, 0), objectBytes*8, contents(turn))
		for i := turn * operationBlocks; i < (turn+1)*operationBlocks; i++ {
			block := make(disk.Block, disk.BlockSize)
			for at := range block {
				block[at] = byte(i%255) + 1
			}
			op.OverWrite(addr.MkAddr(common.Bnum(home+1+i), 0), disk.BlockSize*8, block)
		}
		if !op.CommitWait(each) {
			return fmt.Errorf("a commit was refused")
		}
	}
	journal.Flush()
	elapsed := time.Since(start).Seconds()
	closed(journal, d)
	figure("blocks_per_block", float64(d.blocks.Load())/float64(operations*operationBlocks))
	figure("flushes_per_mib", float64(d.flushes.Load())/float64(operations))
	figure("mib_per_second", float64(operations)/elapsed)
	return nil
}
