package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	bolt "go.etcd.io/bbolt"
)

func fail(line string) {
	fmt.Println(line)
	os.Exit(1)
}

func main() {
	db, err := bolt.Open("db", 0o600, nil)
	if err != nil {
		fail("does not open: " + err.Error())
	}
	bucket := []byte("b")
	if os.Args[1] == "write" {
		for _, key := range os.Args[2:] {
			err := db.Update(func(tx *bolt.Tx) error {
				b, err := tx.CreateBucketIfNotExists(bucket)
				if err != nil {
					return err
				}
				return b.Put([]byte(key), []byte(strings.Repeat(key, 400)))
			})
			if err != nil {
				fail(err.Error())
			}
			fmt.Println(key)
		}
		return
	}
	acked, err := os.Open(os.Args[2])
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(acked)
	_ = db.View(func(tx *bolt.Tx) error {
		for problem := range tx.Check() {
			fail("check: " + strings.SplitN(problem.Error(), ":", 2)[0])
		}
		b := tx.Bucket(bucket)
		for lines.Scan() {
			if b == nil || string(b.Get([]byte(lines.Text()))) != strings.Repeat(lines.Text(), 400) {
				fail("a key is lost")
			}
		}
		return nil
	})
}
