"""The programs of scripts/store-chaos.sh.

  store-chaos.py plan SEED SECONDS KIND…        prints faults, one a line: milliseconds before it, its kind, its numbers. A stop of the
                                                mount's server lasts SECONDS at most
  store-chaos.py proxy SEED PORT FILE           relays to 127.0.0.1:PORT, with delays and cuts; writes its own port into FILE
  store-chaos.py prepare DIR                    makes what the three programs below go on with
  store-chaos.py files|sqlite|git DIR NOTES N   works in DIR until something fails or SIGTERM comes, and notes what was acknowledged;
                                                N is the number of this start
  store-chaos.py judge DIR NOTES                every noted operation must be there, and nothing may be torn
  store-chaos.py judge DIR NOTES --may-lose LAG the last ones may be missing, of LAG seconds: what is there is a prefix
  store-chaos.py mutate DIR NOTES WHAT          removes a noted file, transaction or commit
  store-chaos.py count NOTES                    how many operations were acknowledged, and how many of them a take-over lost

A note is a line: 'ack NAME BEGIN END', with the times before the operation and after its acknowledgement; 'drop N': files of the start N
are being removed; 'lost NAME': a judge allowed its loss; 'error WORDS': the program ended. NOTES/stops has a line with begin and end
of each time in which a server stood still; before a take-over is judged, the last line is that of its old server.
"""
import asyncio
import ctypes
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

# The programs that work on the volume, and what they acknowledge.
PROGRAMS = {"files": "files", "sqlite": "transactions", "git": "commits"}

# ---------------------------------------------------------------- faults


def plan(seed, longest, kinds):
    """Each kind comes as often as it is named in each deck of faults."""
    rng = random.Random(f"plan {seed}")

    def stop():
        # As many stops between one and two seconds as between two and four, and so on.
        return int(1000 * longest ** rng.random())

    numbers = {
        "gateway-kill": lambda: [rng.randrange(2), rng.randrange(3000)],
        "gateway-stop": lambda: [rng.randrange(2), rng.randrange(500, 3000)],
        "server-stop": lambda: [stop()],
        "server-kill": lambda: [],
        "take-over": lambda: [rng.choice([0, rng.randrange(2000), stop()]), rng.randrange(3000), rng.choice([0, rng.randrange(1000, 8000)])],
    }
    for _ in range(2000):
        deck = list(kinds)
        rng.shuffle(deck)
        for kind in deck:
            print(rng.randrange(2000, 6000), kind, *numbers[kind]())


# What becomes of a request, and how often.
FATES = [
    ("good", 9450),
    ("cut before", 100),  # nothing of it arrives
    ("cut inside", 100),  # a part of it arrives
    ("cut after", 150),  # it takes effect, no answer comes back
    ("cut answer", 90),  # a part of the answer comes back
    ("twice", 100),  # it arrives twice, and the second answer comes back
    ("late", 10),  # it arrives after seconds, though the client may have given up
]


async def read_message(reader, bodiless=False):
    """A request or an answer, whole; None if there is none any more."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    fields = dict(line.split(b":", 1) for line in head.lower().split(b"\r\n")[1:] if b":" in line)
    if bodiless or head.split(b" ", 2)[1][:3] in (b"204", b"304"):
        return head
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        parts = [head]
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            parts += [line, await reader.readexactly(size + 2)]
            if size == 0:
                return b"".join(parts)
    return head + await reader.readexactly(int(fields.get(b"content-length", b"0")))


async def relay(rng, port, reader, writer):
    there = None

    async def ask(request):
        there[1].write(request)
        await there[1].drain()
        return await read_message(there[0], request.startswith(b"HEAD "))

    try:
        while (request := await read_message(reader)) is not None:
            fate = rng.choices([name for name, _ in FATES], [weight for _, weight in FATES])[0]
            delay = rng.choices([rng.expovariate(1 / 0.002), rng.uniform(0.01, 0.1), rng.uniform(0.1, 1)], [950, 45, 5])[0]
            await asyncio.sleep(rng.uniform(0.5, 15) if fate == "late" else delay)
            if fate == "cut before":
                return
            if there is None:
                there = await asyncio.open_connection("127.0.0.1", port)
            if fate == "cut inside":
                there[1].write(request[: rng.randrange(1, len(request))])
                await there[1].drain()
                return
            answer = await ask(request)
            if fate == "twice" and answer is not None:
                answer = await ask(request)
            if answer is None or fate == "cut after":
                return
            if fate == "cut answer":
                answer = answer[: rng.randrange(len(answer))]
            writer.write(answer)
            await writer.drain()
            if fate == "cut answer":
                return
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        for end in (writer, there and there[1]):
            if end:
                end.close()


def end_with_parent():
    """An orphan of the script would go on for ever."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


async def proxy(seed, port, path):
    end_with_parent()
    rng = random.Random(f"proxy {seed}")
    server = await asyncio.start_server(lambda reader, writer: relay(rng, port, reader, writer), "127.0.0.1", 0)
    with open(path + ".new", "w") as file:
        print(server.sockets[0].getsockname()[1], file=file)
    os.rename(path + ".new", path)
    await server.serve_forever()


# ---------------------------------------------------------------- work on the volume


class Notes:
    """Notes of one program, outside of the volume."""

    def __init__(self, directory, program):
        self.fd = os.open(f"{directory}/{program}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.stopping = False
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_):
        self.stopping = True

    def write(self, *words):
        os.write(self.fd, (" ".join(map(str, words)) + "\n").encode())

    def acknowledged(self, name, begin):
        self.write("ack", name, f"{begin:.6f}", f"{time.time():.6f}")


# Files of a start are removed this many starts later, but for each 64th.
STARTS_KEPT = 2
FILES_KEPT = 64


def file_content(start, number):
    size = 131072 if number % 16 == 0 else 500 + number * 2654435761 % 7000
    text = f"{start}-{number} ".encode()
    return (text * (size // len(text) + 1))[:size]


def work_files(directory, notes, start):
    dropped = start - STARTS_KEPT
    if os.path.isdir(f"{directory}/files/{dropped}"):
        notes.write("drop", dropped)
        for name in os.listdir(f"{directory}/files/{dropped}"):
            if int(name) % FILES_KEPT:
                os.unlink(f"{directory}/files/{dropped}/{name}")
    os.mkdir(f"{directory}/files/{start}")
    for number in itertools.count(1):
        begin = time.time()
        fd = os.open(f"{directory}/files/{start}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        data = memoryview(file_content(start, number))
        while data:
            data = data[os.write(fd, data):]
        os.fsync(fd)
        os.close(fd)
        notes.acknowledged(f"{start}/{number}", begin)
        if notes.stopping:
            return


ACCOUNTS = 50


def entry_text(number):
    return f"{number:08d}" * (2 + number % 30)


def work_sqlite(directory, notes, start):
    db = sqlite3.connect(f"{directory}/sqlite/db", isolation_level=None)
    for pragma in (("journal_mode = wal", "synchronous = full"), ("journal_mode = delete", "synchronous = extra"))[start % 2]:
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute("PRAGMA wal_autocheckpoint = 200").fetchall()
    last = db.execute("SELECT max(n) FROM entry").fetchone()[0] or 0
    for number in itertools.count(last + 1):
        begin = time.time()
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE account SET v = v - ? WHERE id = ?", (number % 7, number % ACCOUNTS))
        db.execute("UPDATE account SET v = v + ? WHERE id = ?", (number % 7, (number * 3 + 1) % ACCOUNTS))
        db.execute("INSERT INTO entry VALUES (?, ?)", (number, entry_text(number)))
        db.execute("COMMIT")
        notes.acknowledged(number, begin)
        if notes.stopping:
            db.close()
            return


def git(directory, *arguments):
    settings = ["core.fsync=all", "core.fsyncMethod=fsync", "gc.auto=500", "gc.autoDetach=false", "maintenance.autoDetach=false",
                "user.name=name", "user.email=email", "init.defaultBranch=main", "safe.directory=*"]
    command = ["git", *(word for setting in settings for word in ("-c", setting)), "-C", f"{directory}/git", *arguments]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise OSError(f"git {arguments[0]} exits with {done.returncode}: {said[:500]}")
    return done.stdout


def sync_directory(path):
    """sync(2) and syncfs(2) do not reach a FUSE server; fsync of a directory does."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def work_git(directory, notes, start):
    # A killed git leaves its locks.
    for where, _, names in os.walk(f"{directory}/git/.git"):
        for name in names:
            if name.endswith(".lock") or name == "gc.pid":
                os.unlink(f"{where}/{name}")
    git(directory, "reset", "--quiet", "--hard")
    for number in itertools.count(1):
        begin = time.time()
        with open(f"{directory}/git/file-{number % 40}", "w") as file:
            file.write(f"{start}-{number} " * (1 + number % 300))
        git(directory, "add", "--all")
        git(directory, "commit", "--quiet", "--message", f"{start}-{number}")
        # The reference is renamed into its place, and git does not sync that.
        sync_directory(f"{directory}/git/.git")
        notes.acknowledged(git(directory, "rev-parse", "HEAD").strip(), begin)
        if notes.stopping:
            return


def prepare(directory):
    for name in PROGRAMS:
        os.mkdir(f"{directory}/{name}")
    db = sqlite3.connect(f"{directory}/sqlite/db", isolation_level=None)
    db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, v INTEGER NOT NULL)")
    db.execute("CREATE TABLE entry (n INTEGER PRIMARY KEY, text TEXT NOT NULL)")
    db.executemany("INSERT INTO account VALUES (?, 1000)", [(i,) for i in range(ACCOUNTS)])
    db.close()
    git(directory, "init", "--quiet")
    git(directory, "commit", "--quiet", "--allow-empty", "--message", "first")


def work(program, directory, notes_directory, start):
    notes = Notes(notes_directory, program)
    end_with_parent()
    try:
        {"files": work_files, "sqlite": work_sqlite, "git": work_git}[program](directory, notes, start)
    except OSError as error:
        notes.write("error", error.errno if error.errno else str(error).replace("\n", "; "))
    except sqlite3.Error as error:
        notes.write("error", error)


# ---------------------------------------------------------------- the judge


def read_notes(directory, program):
    """What was acknowledged and not lost since, in order: name to times. And the starts whose files were dropped."""
    acknowledged, dropped = {}, set()
    try:
        lines = open(f"{directory}/{program}").readlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        words = line.split()
        if words[0] == "ack":
            acknowledged[words[1]] = (float(words[2]), float(words[3]))
        elif words[0] == "lost":
            acknowledged.pop(words[1], None)
        elif words[0] == "drop":
            dropped.add(int(words[1]))
    return acknowledged, dropped


class Judge:
    def __init__(self):
        self.wrong = []

    def files(self, directory, acknowledged, dropped):
        """Names that are there and whole; of each start, the first files must be there, and only the last of them may be torn."""
        there = set()
        for start in map(int, os.listdir(f"{directory}/files")):
            numbers = sorted(map(int, os.listdir(f"{directory}/files/{start}")))

            def is_whole(number, start=start):
                with open(f"{directory}/files/{start}/{number}", "rb") as file:
                    return file.read() == file_content(start, number)

            with ThreadPoolExecutor(8) as readers:
                whole = {number for number, good in zip(numbers, readers.map(is_whole, numbers)) if good}
            there |= {f"{start}/{number}" for number in whole}
            if start in dropped:
                continue
            last = max(numbers, default=0)
            for number in range(1, last + 1):
                if number not in whole and (number not in numbers or number < last):
                    how = "torn" if number in numbers else "missing"
                    self.wrong.append(f"file {start}/{number} is {how}, though {start}/{last} is there")
        # What is being removed is there or not.
        for name in acknowledged:
            start, number = map(int, name.split("/"))
            if start in dropped and number % FILES_KEPT:
                there.add(name)
        return there

    def sqlite(self, directory, *_):
        try:
            db = sqlite3.connect(f"{directory}/sqlite/db", isolation_level=None)
            said = db.execute("PRAGMA integrity_check").fetchall()
            if said != [("ok",)]:
                self.wrong.append(f"SQLite's integrity_check says {said[:3]}")
            rows = db.execute("SELECT n, text FROM entry ORDER BY n").fetchall()
            total = db.execute("SELECT sum(v) FROM account").fetchone()[0]
            db.close()
        except sqlite3.Error as error:
            self.wrong.append(f"SQLite says {error}")
            return set()
        if [n for n, _ in rows] != list(range(1, len(rows) + 1)):
            gap = next((i for i, (n, _) in enumerate(rows, 1) if n != i), None)
            self.wrong.append(f"transaction {gap} is missing, though {rows[-1][0]} is there")
        if any(text != entry_text(n) for n, text in rows) or total != 1000 * ACCOUNTS:
            self.wrong.append(f"the database has other values than were written, or a sum of {total}")
        return {str(n) for n, _ in rows}

    def git(self, directory, *_):
        try:
            git(directory, "fsck", "--full", "--no-progress", "--no-dangling")
            return set(git(directory, "rev-list", "HEAD").split())
        except OSError as error:
            self.wrong.append(str(error))
            return set()

    def order(self, acknowledged, lost, lag, stops):
        """What is there is a prefix in time over all programs, and what is lost is no more than the lag."""
        first = min(end for _, end in lost.values())
        for program, noted in acknowledged.items():
            for name, (begin, end) in noted.items():
                what = f"{PROGRAMS[program]} {name}"
                if (program, name) not in lost and begin > first:
                    self.wrong.append(f"{what} is there, though it began {begin - first:.3f} s after the first loss was acknowledged")
                # What was under way when the server was stopped is noted when it goes on, however early it was acknowledged.
                at_once = all(end <= stopped or begin >= resumed for stopped, resumed in stops)
                if at_once and end - first > lag + SLACK:
                    self.wrong.append(f"{what} was acknowledged {end - first:.3f} s after the first one that is lost")
        return stops[-1][0] - first


# A program notes an acknowledgement this many seconds after it at most, on a busy machine.
SLACK = 2


def judge(directory, notes_directory, allowed):
    this = Judge()
    acknowledged, lost, words = {}, {}, []
    for program, what in PROGRAMS.items():
        noted, dropped = read_notes(notes_directory, program)
        there = getattr(this, program)(directory, noted, dropped)
        missing = {name: times for name, times in noted.items() if name not in there}
        acknowledged[program] = noted
        lost.update({(program, name): times for name, times in missing.items()})
        words.append(f"{len(noted)} {what}" + (f" ({len(missing)} lost)" if missing else ""))
        if missing and not allowed:
            shown = ", ".join(f"{name} (acknowledged at {end:.3f})" for name, (_, end) in list(missing.items())[:5])
            this.wrong.append(f"lost: {len(missing)} {what}: {shown}")
    if lost and allowed:
        stops = [tuple(map(float, line.split())) for line in open(f"{notes_directory}/stops")]
        age = this.order(acknowledged, lost, float(allowed), stops)
        words.append(f"the first loss was acknowledged {age:.1f} s before the old server stood still")
        for program, name in lost:
            with open(f"{notes_directory}/{program}", "a") as notes:
                print("lost", name, file=notes)
    print(", ".join(words))
    for what in this.wrong[:6]:
        print(f"WRONG: {what}")
    if this.wrong[6:]:
        print(f"WRONG: {len(this.wrong) - 6} more")
    return 1 if this.wrong else 0


def mutate(directory, notes_directory, what):
    if what == "file":
        names = list(read_notes(notes_directory, "files")[0])
        os.unlink(f"{directory}/files/{names[len(names) // 2]}")
    elif what == "transaction":
        db = sqlite3.connect(f"{directory}/sqlite/db")
        with db:
            db.execute("DELETE FROM entry WHERE n = (SELECT max(n) FROM entry)")
            db.execute("DELETE FROM entry WHERE n = (SELECT max(n) FROM entry)")
        db.close()
    else:
        git(directory, "update-ref", "HEAD", "HEAD~2")


def count(notes_directory):
    parts, lost = [], 0
    for program, what in PROGRAMS.items():
        kinds = [line.split(" ", 1)[0] for line in open(f"{notes_directory}/{program}")]
        parts.append(f"{kinds.count('ack')} {what}")
        lost += kinds.count("lost")
    print(f"{', '.join(parts)} acknowledged, {lost} lost")


def main(command, *arguments):
    if command == "plan":
        plan(arguments[0], float(arguments[1]), arguments[2:])
    elif command == "proxy":
        asyncio.run(proxy(arguments[0], int(arguments[1]), arguments[2]))
    elif command == "prepare":
        prepare(*arguments)
    elif command in PROGRAMS:
        work(command, arguments[0], arguments[1], int(arguments[2]))
    elif command == "judge":
        sys.exit(judge(*arguments[:2], arguments[3] if arguments[2:] else None))
    elif command == "mutate":
        mutate(*arguments)
    elif command == "count":
        count(*arguments)
    else:
        sys.exit(f"unknown command '{command}'")


main(*sys.argv[1:])
