"""The quickstart: it finds a planted bug."""

import os

import pytest
from steadfast_crash import ack


def save(dir):
    with open(dir / "tmp", "w") as f:
        f.write("new")
    os.rename(dir / "tmp", dir / "f")


def save_durably(dir):
    with open(dir / "tmp", "w") as f:
        f.write("new")
        f.flush()
        os.fsync(f.fileno())
    os.rename(dir / "tmp", dir / "f")
    parent = os.open(dir, os.O_RDONLY)
    os.fsync(parent)
    os.close(parent)
    ack("saved")


def check(state):
    f = state.dir / "f"
    assert not f.exists() or f.read_text() == "new", "f is damaged"
    assert f.exists() or not state.acked, "f is lost"


def test_a_forgotten_fsync_is_found(crash_test):
    report = crash_test(save, check, fs="ext4,xfs,ordered")
    assert report.has("ext4", "f is damaged") and report.has("xfs", "f is damaged"), str(report)
    assert not report.has("ordered", "f is damaged"), str(report)
    with pytest.raises(AssertionError, match="f is damaged"):
        report.assert_survives()


def test_with_the_fsync_it_survives(crash_test):
    crash_test(save_durably, check).assert_survives()


@pytest.mark.skipif(os.geteuid() != 0, reason="the mount is for all to see: root")
def test_a_live_mount_loses_what_was_not_synced(crash_mount):
    with open(crash_mount.mnt / "kept", "w") as f:
        f.write("x")
        f.flush()
        os.fsync(f.fileno())
    (crash_mount.mnt / "lost").write_text("y")
    assert any(line["path"] == "lost" for line in crash_mount.status()["not_durable"])
    crash_mount.cut()
    with pytest.raises(OSError):
        (crash_mount.mnt / "late").write_text("z")
    crash_mount.power_on()
    assert sorted(p.name for p in crash_mount.mnt.iterdir()) == ["kept"]
    crash_mount.fail("--call", "fsync", "--errno", "EIO")
    with open(crash_mount.mnt / "kept", "a") as f, pytest.raises(OSError):
        os.fsync(f.fileno())
