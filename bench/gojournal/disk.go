// The disks of the measures: go-journal's own, counted.

package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/mit-pdos/go-journal/txn"
	"github.com/mit-pdos/go-journal/wal"
	"github.com/tchajed/goose/machine/disk"
)

// home is the first block behind the log and its two headers.
const home = uint64(wal.LOGDISKBLOCKS)

// counting counts what goes to a disk. Blocks before home belong to the journal itself.
type counting struct {
	disk.Disk
	flushes, blocks, journalBlocks atomic.Uint64
}

func (d *counting) Write(a uint64, v disk.Block) {
	d.blocks.Add(1)
	if a < home {
		d.journalBlocks.Add(1)
	}
	d.Disk.Write(a, v)
}

func (d *counting) Barrier() {
	d.flushes.Add(1)
	d.Disk.Barrier()
}

// open makes an empty journal on a disk of that many blocks.
func open(name string, blocks uint64) (*txn.Txn, *counting, error) {
	var under disk.Disk
	if name == "memory" {
		under = disk.NewMemDisk(blocks)
	} else {
		info, err := os.Stat(name)
		if err != nil {
			return nil, nil, err
		}
		has := uint64(info.Size()) / disk.BlockSize
		if has < blocks {
			return nil, nil, fmt.Errorf("%s has %d blocks, the measure needs %d", name, has, blocks)
		}
		// Opened at its full size: the disk would cut it.
		file, err := disk.NewFileDisk(name, has)
		if err != nil {
			return nil, nil, err
		}
		under = file
	}
	zeros := make(disk.Block, disk.BlockSize)
	for a := uint64(0); a < home; a++ {
		under.Write(a, zeros)
	}
	under.Barrier()
	d := &counting{Disk: under}
	return txn.MkTxn(d), d, nil
}

// closed makes everything durable, lets the installer finish, and stops the journal.
func closed(journal *txn.Txn, d *counting) {
	journal.Flush()
	// There is no call that waits for the installer.
	for before := uint64(0); before != d.blocks.Load()+d.flushes.Load(); {
		before = d.blocks.Load() + d.flushes.Load()
		time.Sleep(30 * time.Millisecond)
	}
	journal.Shutdown()
}
