package crashtest_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"steadfast.example/crashtest"
)

func check(s crashtest.State) error {
	b, err := os.ReadFile(filepath.Join(s.Dir, "f"))
	switch {
	case err == nil && string(b) != "new":
		return errors.New("f is damaged")
	case err != nil && len(s.Acked) > 0:
		return errors.New("f is lost")
	}
	return nil
}

func TestAForgottenFsyncIsFound(t *testing.T) {
	save := func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "tmp"), []byte("new"), 0o644); err != nil {
			return err
		}
		return os.Rename(filepath.Join(dir, "tmp"), filepath.Join(dir, "f"))
	}
	report := crashtest.Run(t, save, check, "--fs", "ext4,xfs,ordered")
	if !report.Has("ext4", "f is damaged") || !report.Has("xfs", "f is damaged") || report.Has("ordered", "f is damaged") {
		t.Fatalf("the planted bug: %s", report)
	}
}

func sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func TestWithTheFsyncItSurvives(t *testing.T) {
	save := func(dir string) error {
		tmp := filepath.Join(dir, "tmp")
		return errors.Join(
			os.WriteFile(tmp, []byte("new"), 0o644),
			sync(tmp),
			os.Rename(tmp, filepath.Join(dir, "f")),
			sync(dir),
			crashtest.Ack("saved"),
		)
	}
	crashtest.Run(t, save, check).AssertSurvives(t)
}

func TestALiveMountLosesWhatWasNotSynced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the mount is for all to see: root")
	}
	dir, mnt := t.TempDir(), t.TempDir()
	live := crashtest.Mount(t, "ext4", dir, mnt)
	kept := filepath.Join(mnt, "kept")
	if err := errors.Join(os.WriteFile(kept, []byte("x"), 0o644), sync(kept)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mnt, "lost"), []byte("y"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := live.Ask("cut"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mnt, "late"), nil, 0o644); err == nil {
		t.Fatal("the power is off")
	}
	if _, err := live.Ask("power-on"); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(mnt)
	if err != nil || len(entries) != 1 || entries[0].Name() != "kept" {
		t.Fatal(entries, err)
	}
}
