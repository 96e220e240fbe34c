"""Fixtures for pytest."""

import pytest

from . import LiveMount
from . import crash_test as run


@pytest.fixture
def crash_test():
    """``crash_test(workload, check)`` records the workload and judges every state that a power cut could leave."""
    return run


@pytest.fixture
def crash_mount(tmp_path):
    """An empty directory whose power can be cut: a ``LiveMount`` with the model of ext4."""
    dir, mnt = tmp_path / "dir", tmp_path / "mnt"
    dir.mkdir()
    mnt.mkdir()
    with LiveMount(dir, mnt) as live:
        yield live
