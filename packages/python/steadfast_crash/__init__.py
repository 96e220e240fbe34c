"""Power-cut tests over the command ``steadfast crash test``.

``crash_test(workload, check)`` runs the command, which starts Python again for the workload, whose calls it records, and once for each
state that a power cut could leave, for the check. Both are functions of a module: they are found again by file and name.
"""

import inspect
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

__all__ = ["CrashTestError", "LiveMount", "Report", "State", "ack", "crash_test"]


class CrashTestError(Exception):
    """The command is not there, or could not run the workload."""


class State:
    """A state that a power cut could leave: its files, what must be there, what may be."""

    def __init__(self, dir, acked, issued):
        self.dir = Path(dir)
        self.acked = acked
        self.issued = issued


class Report:
    """What ``steadfast crash test --json`` prints."""

    def __init__(self, raw):
        self.raw = raw
        self.findings = raw["findings"]

    def has(self, model, line):
        """Whether the check said this of a state on this file system."""
        found = (f for f in self.findings if line in f["line"])
        return any(u["model"] == model for f in found for u in f["under"])

    def assert_survives(self):
        """Fails with the report if anything was found."""
        assert not self.findings, f"a power cut breaks it:\n{self}"

    def __str__(self):
        lines = []
        for finding in self.findings:
            on = ", ".join(u["model"] for u in finding["under"])
            lines.append(f"{finding['id']} {finding['kind']} on {on}: {finding['line']}")
            first = finding["under"][0] if finding["under"] else {}
            if first.get("durable"):
                lines.append(f"  durable  #{first['durable']['call']} {first['durable']['text']}")
            for lost in first.get("lost", []):
                lines.append(f"  lost     #{lost['call']} {lost['text']}")
        return "\n".join(lines)


def ack(text):
    """Says, in a workload, that something is done and must survive."""
    path = os.environ.get("STEADFAST_CRASH_ACK")
    if path:
        # One write, one close: no buffer in between.
        file = os.open(path, os.O_WRONLY)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


def _command():
    return os.environ.get("STEADFAST", "steadfast")


def _run(words):
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CrashTestError(
            f"{words[0]}: {error}; install steadfast, or name the command in STEADFAST"
        ) from error


def _again(role, function):
    """The words that run a function of a module in a process of its own."""
    if "<locals>" in function.__qualname__ or "<lambda>" in function.__qualname__:
        raise TypeError(f"{function.__qualname__}: a function of a module is needed, to find it again by name")
    path = os.path.abspath(inspect.getsourcefile(function))
    return [sys.executable, "-m", "steadfast_crash", role, path, function.__qualname__]


def crash_test(workload, check, fs=None, options=()):
    """Records the workload and judges every state. ``workload`` is a function of a module, or the words of a command."""
    words = [_command(), "crash", "test", "--json", *options]
    if fs:
        words += ["--fs", fs]
    here = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    prefix = ["env", f"PYTHONPATH={path}", "PYTHONDONTWRITEBYTECODE=1"]
    words += ["--check", shlex.join(prefix + _again("check", check)), "--"]
    words += prefix + _again("workload", workload) if callable(workload) else list(workload)
    ran = _run(words)
    if ran.returncode not in (0, 1, 4) or not ran.stdout.strip():
        raise CrashTestError(ran.stderr.strip() or f"exit status {ran.returncode}")
    return Report(json.loads(ran.stdout))


class LiveMount:
    """A mount whose power can be cut while programs use it: ``with LiveMount(dir, mnt) as live: ...``"""

    def __init__(self, dir, mnt, fs="ext4"):
        self.dir, self.mnt, self.fs = Path(dir), Path(mnt), fs

    def __enter__(self):
        self._done(["mount", "--fs", self.fs, "--", str(self.dir), str(self.mnt)])
        return self

    def __exit__(self, *_):
        self._done(["stop", "--", str(self.mnt)])

    def _done(self, words):
        ran = subprocess.run(
            [_command(), "crash", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False
        )
        if ran.returncode:
            raise CrashTestError(ran.stderr.strip())
        return ran.stdout

    def _ask(self, what, *options):
        return json.loads(self._done([what, "--json", *options, "--", str(self.mnt)]))

    def cut(self, policy="durable", seed=1):
        """Cuts the power. Every later call fails until ``power_on``."""
        return self._ask("cut", "--policy", policy, "--seed", str(seed))

    def power_on(self):
        """Shows what survived."""
        return self._ask("power-on")

    def fail(self, *options):
        """Makes calls fail: the options of ``steadfast crash fail``."""
        return self._ask("fail", *options)

    def heal(self):
        """Ends all of ``fail``."""
        return self._ask("heal")

    def status(self):
        """What is not durable."""
        return self._ask("status")
