// The go-journal driver of bench/run journal: the counterpart of bench/journal, with the same measures under the
// same names. It takes one measure once, in a process of its own, and prints lines "NAME VALUE".
//
// DEVICE is "memory", or a prewritten file; both are go-journal's own disks. The file's disk goes through the page
// cache and syncs: it has no other way.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

const usage = `usage: gojournal MEASURE
  sync DEVICE THREADS SECONDS  synchronous create-like transactions of 3 blocks
  create COMMITS               synchronous creations with 5 blocks, on the memory device
  deferred THREADS SECONDS     deferred commits of 128 bytes, on the memory device
  sequential MIB each|end      new data in operations of 1 MiB, flushed each time or at the end
Prints one line "NAME VALUE" for each figure.`

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

func figure(name string, value float64) { fmt.Printf("%s %.6f\n", name, value) }

func count(text string) (uint64, error) {
	number, err := strconv.ParseUint(text, 10, 32)
	if err != nil || number == 0 {
		return 0, fmt.Errorf("'%s' is not a number above zero", text)
	}
	return number, nil
}

func duration(text string) (float64, error) {
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0) {
		return 0, fmt.Errorf("'%s' is not a number of seconds above zero", text)
	}
	return seconds, nil
}

func run(words []string) error {
	shape := ""
	if len(words) > 0 {
		shape = fmt.Sprintf("%s %d", words[0], len(words)-1)
	}
	switch shape {
	case "sync 3", "deferred 2":
		threads, err := count(words[len(words)-2])
		if err != nil {
			return err
		}
		seconds, err := duration(words[len(words)-1])
		if err != nil {
			return err
		}
		if shape == "sync 3" {
			return syncCommits(words[1], int(threads), seconds)
		}
		return deferred(threads, seconds)
	case "create 1":
		commits, err := count(words[1])
		if err != nil {
			return err
		}
		return create(commits)
	case "sequential 2":
		mib, err := count(words[1])
		if err != nil {
			return err
		}
		if words[2] != "each" && words[2] != "end" {
			return fmt.Errorf("'%s' is neither 'each' nor 'end'", words[2])
		}
		return sequential(mib, words[2] == "each")
	}
	return errors.New(usage)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "gojournal: %v\n", err)
		os.Exit(1)
	}
}
