"""What programs make of an fdatasync that fails: each writes on a mount of 'steadfast crash mount', one sync fails, the power is cut.

usage: fsync.py STEADFAST WORK PROGRAM…         prints a row of a table for each program and way to fail
       fsync.py child sqlite|sqlite-wal|leveldb PATH       keeps a database open: a line in, a line out

Exits 1 if something acknowledged after a sync that succeeded is missing, which no program here is expected to do.
"""

import glob
import os
import shutil
import signal
import subprocess
import sys
import time

WAIT_S = 120
SYNCS = (1, 2, 3)


def child(kind, path):
    """One process that keeps a database open."""
    if kind.startswith("sqlite"):
        import sqlite3

        base = sqlite3.connect(path, isolation_level=None)
        # With DELETE and FULL a cut can bring the journal back, also if no sync fails.
        base.execute("pragma synchronous=extra")
        if kind == "sqlite-wal":
            base.execute("pragma journal_mode=wal").fetchall()
        base.execute("create table if not exists t(a text)")

        def put(key):
            base.execute("insert into t values (?)", (key,))

        def keys():
            return [row[0] for row in base.execute("select a from t")]

    else:
        import plyvel

        base = plyvel.DB(path, create_if_missing=True)

        def put(key):
            base.put(key.encode(), b"x" * 100, sync=True)

        def keys():
            return [key.decode() for key, _ in base]

    print("ready", flush=True)
    for line in sys.stdin:
        word, _, key = line.strip().partition(" ")
        try:
            if word == "put":
                put(key)
                print("ok", flush=True)
            else:
                print("keys", *keys(), flush=True)
        except Exception as error:  # What it says is the result.
            print("error", str(error).splitlines()[0][:80], flush=True)


class Library:
    """SQLite or LevelDB in a process of its own."""

    def __init__(self, kind, mount):
        self.kind, self.path, self.process = kind, os.path.join(mount, "base"), None

    def make(self):
        pass

    def start(self):
        command = [sys.executable, __file__, "child", self.kind, self.path]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, **pipes)
        if self.process.stdout.readline().strip() == "ready":
            return None
        lines = self.process.stderr.read().strip().splitlines()
        return lines[-1] if lines else "it does not start"

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            return self.process.stdout.readline().strip() or "the process has ended"
        except BrokenPipeError:
            return "the process has ended"

    def put(self, key):
        said = self.ask("put " + key)
        return None if said == "ok" else said.removeprefix("error ")

    def keys(self):
        said = self.ask("keys")
        return set(said.split()[1:]) if said.startswith("keys") else said

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                try:
                    pipe.close()
                except OSError:
                    pass


class Redis:
    def __init__(self, mount, work):
        self.mount, self.work, self.process = mount, work, None
        self.socket = os.path.join(work, "redis.socket")

    def make(self):
        pass

    def command(self, *words):
        done = subprocess.run(["redis-cli", "-s", self.socket, *words], capture_output=True, text=True)
        return (done.stdout + done.stderr).strip()

    def start(self):
        log = open(os.path.join(self.work, "redis.log"), "a")
        options = ["--port", "0", "--unixsocket", self.socket, "--dir", self.mount]
        options += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self.process = subprocess.Popen(["redis-server", *options], stdout=log, stderr=log)
        until = time.monotonic() + WAIT_S
        while self.command("ping") != "PONG":
            if self.process.poll() is not None or time.monotonic() > until:
                return "the server does not start"
            time.sleep(0.05)
        return None

    def put(self, key):
        said = self.command("set", key, key)
        if said == "OK":
            return None
        gone = self.process.poll() is not None
        return "the server has ended" if gone else said[:80] or "no answer"

    def keys(self):
        return {line.split(" ")[-1].strip('"') for line in self.command("keys", "*").splitlines() if line}

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()


class Postgres:
    def __init__(self, mount, work):
        self.data, self.work = os.path.join(mount, "pg"), os.path.join(work, "pgsocket")
        self.bin, self.first = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1], None
        os.makedirs(self.work, exist_ok=True)
        shutil.chown(self.work, "postgres")

    def run(self, *words):
        command = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", *words]
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/")

    def make(self):
        os.mkdir(self.data)
        shutil.chown(self.data, "postgres")
        made = self.run(f"{self.bin}/initdb", "-D", self.data, "-A", "trust")
        if made.returncode:
            raise RuntimeError("initdb: " + made.stdout[-300:])

    def sql(self, text):
        return self.run("psql", "-h", self.work, "-d", "postgres", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", text)

    def start(self):
        # As pg_ctlcluster does with a file that names no server.
        if os.path.exists(f"{self.data}/postmaster.pid"):
            os.unlink(f"{self.data}/postmaster.pid")
        options = f"-k {self.work} -h '' -c autovacuum=off -c restart_after_crash=on"
        log = os.path.join(self.work, "log")
        started = self.run(f"{self.bin}/pg_ctl", "-D", self.data, "-s", "-w", "-t", str(WAIT_S), "-l", log, "-o", options, "start")
        if started.returncode:
            with open(log) as file:
                last = file.read().strip().splitlines()[-1:]
            return " ".join(["the server does not start:", *last])
        with open(f"{self.data}/postmaster.pid") as file:
            self.first = int(file.readline())
        made = self.sql("create table if not exists t(a text)")
        return made.stdout.strip() if made.returncode else None

    def put(self, key):
        until = time.monotonic() + WAIT_S
        while True:
            done = self.sql(f"insert into t values ('{key}')")
            if done.returncode == 0:
                return None
            said = done.stdout.strip().splitlines()
            # After a panic the server recovers by itself: a client tries again.
            starting = any(w in done.stdout for w in ("starting up", "recovery mode", "not yet accepting", "No such file"))
            if not starting or time.monotonic() > until:
                return said[0][:80] if said else "no answer"
            time.sleep(0.2)

    def keys(self):
        done = self.sql("select a from t")
        return set(done.stdout.split()) if done.returncode == 0 else done.stdout.strip()[:80]

    def kill(self):
        # After a cut its file cannot be read. Its processes end when the first one is gone.
        first, self.first = self.first, None
        if first is None:
            return
        try:
            os.kill(first, signal.SIGQUIT)
        except ProcessLookupError:
            return
        until = time.monotonic() + WAIT_S
        while os.path.exists(f"/proc/{first}") and time.monotonic() < until:
            time.sleep(0.05)


def made(name, mount, work):
    kinds = {"redis": Redis, "postgres": Postgres}
    return kinds[name](mount, work) if name in kinds else Library(name, mount)


def trial(steadfast, work, name, nth, then):
    """One sync fails, then the power is cut. Returns what was said of each put, and the keys that are left."""
    seed, mount = os.path.join(work, "seed"), os.path.join(work, "mnt")
    for path in (seed, mount):
        os.makedirs(path, exist_ok=True)

    def crash(*words):
        subprocess.run([steadfast, "crash", *words], check=True, stdout=subprocess.DEVNULL)

    crash("mount", "--fs", "ext4", seed, mount)
    program = made(name, mount, work)
    try:
        program.make()
        wrong = program.start()
        if wrong:
            raise RuntimeError(f"{name}: {wrong}")
        said = {"one": program.put("one")}
        crash("fail", mount, "--call", "fdatasync", "--errno", "EIO", "--nth", str(nth), "--then", then)
        said["two"] = program.put("two")
        said["three"] = program.put("three")
        crash("heal", mount)
        said["four"] = program.put("four")
        crash("cut", mount, "--policy", "durable")
        program.kill()
        crash("power-on", mount)
        wrong = program.start()
        left = wrong or program.keys()
        return said, left
    finally:
        program.kill()
        crash("stop", mount)


def main(steadfast, work, names):
    failed = False
    for name in names:
        for then in ("drop", "keep"):
            errors, lost, unread, refused = [], set(), set(), 0
            for nth in SYNCS:
                said, left = trial(steadfast, work, name, nth, then)
                errors += [text for text in said.values() if text]
                refused += sum(text is not None for text in said.values())
                acknowledged = {key for key, text in said.items() if text is None}
                if isinstance(left, str):
                    unread.add(left)
                else:
                    lost |= {f"{key} (sync {nth})" for key in acknowledged - left}
                if said["one"]:
                    raise RuntimeError(f"{name}: the first put failed: {said['one']}")
            said = "; ".join(sorted(set(errors))) or "nothing"
            result = "; ".join(sorted(unread)) or "opens"
            print(f"| {name} | {then} | {said} ({refused} of {4 * len(SYNCS)} puts) | {result} | {', '.join(sorted(lost)) or 'nothing'} |", flush=True)
            failed |= bool(lost or unread)
    return failed


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(*sys.argv[2:4])
    else:
        sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
