"""Planted faults in the sources, and the tests that find them. Called by scripts/faults.sh in the repository's root.

A fault's name is a part and the fault in snake case: `journal.skip_flush`. Each part has a source: the fields of a struct, the
variants of an enum, the programs of a folder. A test notes the name when it has found the fault (`steadfast_testkit::caught`, in
scripts `note_caught`).
"""

import pathlib
import re
import sys

DOCUMENT = pathlib.Path("docs/faults.md")
TIERS = ["default", "merge", "long"]

# Part: file, declaration, and what its faults are planted in.
SWITCHES = {
    "journal": ("crates/journal/src/lib.rs", "Faults", "the journal"),
    "fs": ("crates/fs/src/options.rs", "Faults", "the file system"),
    "ftl": ("crates/ftl/src/ftl.rs", "Faults", "the translation layer for flash"),
}
ENUMS = {
    "crash": ("crates/crash/src/record.rs", "Mutation", "the stack that `crash self` explores"),
    "replace": ("crates/crash/src/replace.rs", "Variant", "the steps that replace a file"),
    "store": ("crates/store/src/fault.rs", "DeviceFault", "volumes on an object store"),
    "protocol": ("crates/store/src/protocol/fault.rs", "Fault", "their protocol"),
    "explore": ("lab/store-explore/tests/explore/world.rs", "Outer", "what surrounds the protocol in its exploration"),
    "directory": ("crates/store/src/local/directory.rs", "Fault", "a directory as an object store"),
    "disk": ("crates/disk/src/trial.rs", "Fault", "served disks"),
    "copy": ("crates/cli/src/volume/copy/tests.rs", "Fault", "copies of volumes"),
    "pm_trace": ("crates/pmfs/tests/suite/crash/mutants.rs", "Fault", "stores in persistent memory, explored"),
    "crashtest": ("crates/crashtest/src/planted.rs", "Planted", "`crash test`: recorder, exploration, repair"),
    "effects": ("crates/crashtest/src/effects/build.rs", "Fault", "`crash test`: models of file systems"),
    "log": ("crates/model/src/log.rs", "Mutation", "the specification of the journal"),
    "ordered": ("crates/model/src/ordered/simulated.rs", "Bug", "an implementation that the checker of `ordered` judges"),
    "nfs_server": ("bench/nfs/src/fake.rs", "Fault", "an NFS server that the benchmarks' client judges"),
}
# Variants that plant nothing.
NONE = {("log", "None"), ("ordered", "None"), ("nfs_server", "None"), ("replace", "Whole")}
# Enums and structs with such names that declare no planted faults.
OTHERS = {
    ("crates/crash/src/record.rs", "Mutation"): "the empty one of a build without the feature",
    ("crates/crashtest/src/live/faults.rs", "Fault"): "a call that a user of `crash live` has fail",
    ("crates/flash/src/fault.rs", "Fault"): "a failing flash memory",
    ("crates/flash/src/fault.rs", "FaultOp"): "a failing flash memory",
    ("crates/flash/src/fault.rs", "Faults"): "a failing flash memory",
    ("crates/sim/src/fault.rs", "Fault"): "a failing device",
    ("crates/store/src/kept.rs", "Planted"): "holds a fault of `store`",
    ("crates/store/src/protocol/fault.rs", "Faults"): "holds a fault of `protocol`",
}
# Declarations with such names are planted faults, or in the table above.
NAMED = re.compile(
    r"^ *(?:pub(?:\([a-z]+\))? )?(?:enum|struct) (\w*(?:Faults?|Mutations?|Mutants?|Planted|Outer|Bugs?))\b", re.MULTILINE)
PROGRAMS = "crates/pmfs/tests/compile_fail"
TOYS = "crates/cli/tests/crash/crash_toys.rs"
# Faults by themselves: the text that declares each, and what is wrong.
SINGLE = {
    "store_sim.careless": (
        "lab/store-sim/src/store.rs", "pub careless: bool,", "The store ignores conditions."),
    "pm_plan.fence": (
        "crates/pmfs/tests/suite/plans.rs", "trace.without(index)", "A call leaves out one fence of its plan."),
    "pm_plan.commit_word": (
        "crates/pmfs/tests/suite/plans.rs", "order.insert(begin + first, commit)",
        "A call stores the commit word of a line first."),
    "toy.recovery_removes_its_log_early": (
        "crates/cli/tests/crash/crash_extras.rs", "rm log; echo $new >data;",
        "A recovery removes its log before it applies it."),
    "toy.superfluous_sync": (
        "crates/cli/tests/crash/crash_extras.rs", "sync tmp; sync tmp;", "A file is synced twice."),
    "quickstart.rust": (
        "crates/crash-test/tests/quickstart.rs", "fn a_forgotten_fsync_is_found",
        "The example of the Rust package forgets an fsync."),
    "quickstart.python": (
        "packages/python/tests/test_quickstart.py", "def test_a_forgotten_fsync_is_found",
        "The example of the Python package forgets an fsync."),
    "quickstart.go": (
        "packages/go/crashtest_test.go", "func TestAForgottenFsyncIsFound",
        "The example of the Go package forgets an fsync."),
    "chaos.file": ("scripts/store-chaos.sh", "file|transaction|commit", "A file that was synced is removed."),
    "chaos.transaction": (
        "scripts/store-chaos.sh", "file|transaction|commit", "A transaction of SQLite that was acknowledged is removed."),
    "chaos.commit": ("scripts/store-chaos.sh", "file|transaction|commit", "A commit of git that was acknowledged is removed."),
    "chaos.lag": (
        "scripts/store-chaos.sh", "--mutate lag", "A cache's lag after a take-over counts as a loss."),
    "schemas.sarif_level": (
        "scripts/crash-schemas.sh", '["level"] = "perhaps"', "A SARIF report has a level that does not exist."),
    "schemas.junit_case": (
        "scripts/crash-schemas.sh", "<testsuites><testcase/></testsuites>", "A JUnit report has a test case outside of a suite."),
}
# Words for faults whose comments only make sense beside their neighbours'.
WORDS = {
    "crash.gaps_unrelated":
        "Room that an operation left in a directory is open to all streams, and a stream that takes it does not relate by it.",
    "crash.close_late": "The kernel sends writes to a file that is closed after the call that follows the close.",
    "replace.no_file_sync": "The temporary file is not made durable before the rename.",
    "replace.no_directory_sync": "The directory is not made durable at the end.",
}
# What the parts are that no table above describes.
ABOUT = {
    "pm_order": "programs that break the order of stores in persistent memory: they must not compile",
    "pm_plan": "stores in persistent memory, compared with their plans",
    "store_sim": "the simulated object store",
    "toy": "small programs that `crash test` judges",
    "quickstart": "examples of the packages for `crash test`",
    "chaos": "what `scripts/store-chaos.sh` compares",
    "schemas": "reports of `crash test`, compared with their schemas",
}


def fail(*lines):
    for line in lines:
        print(f"faults.sh: {line}", file=sys.stderr)
    sys.exit(1)


def read(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")


def snake_case(name):
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def part_of(name):
    return name.split(".")[0]


def one_line(comment):
    """The text of a comment's first paragraph."""
    lines = [re.sub(r"^\s*//[/!] ?", "", line) for line in comment.splitlines()]
    return " ".join(" ".join(lines).split())


def body(path, head):
    """What is between the braces after a declaration."""
    text = read(path)
    found = re.search(head + r"\s*\{\n(.*?)\n\}", text, re.DOTALL)
    if not found:
        fail(f"{path} does not declare what is expected there: {head}")
    return found.group(1)


def members(path, head, member):
    """Members of a declaration with their comments. All that is there must be one of them."""
    inside = body(path, head)
    for line in inside.splitlines():
        if not re.match(rf" +(?:{member}|pub \w+: [\w:]+::Faults,$|//|#)|$", line):
            fail(f"{path}: '{line.strip()}' is no fault that scripts/faults.py can read")
    for found in re.finditer(rf"((?:^ +///[^\n]*\n)*)^ +{member}", inside, re.MULTILINE):
        yield found.group(2), one_line(found.group(1))


def switches(path, name):
    return members(path, rf"pub struct {name}", r"pub (\w+): bool,$")


def variants(path, name):
    return members(path, rf"enum {name}", r"([A-Z]\w+),$")


def sources():
    """Name of each fault: the file that declares it, and what it leaves out."""
    faults = {}
    for part, (path, name, _) in SWITCHES.items():
        for field, text in switches(path, name):
            faults[f"{part}.{field}"] = (path, text)
    for part, (path, name, _) in ENUMS.items():
        for variant, text in variants(path, name):
            if (part, variant) not in NONE:
                faults[f"{part}.{snake_case(variant)}"] = (path, text)
    for path in sorted(pathlib.Path(PROGRAMS).glob("*.rs")):
        comment = re.match(r"(?://![^\n]*\n)+", read(path))
        faults[f"pm_order.{path.stem}"] = (PROGRAMS, one_line(comment.group(0)) if comment else "")
    toys = read(TOYS)
    for name in re.findall(r'^        name: "(\w+)",$', toys, re.MULTILINE):
        comment = re.search(rf"((?:^///[^\n]*\n)+)fn {name}\(", toys, re.MULTILINE)
        faults[f"toy.{name}"] = (TOYS, one_line(comment.group(1)) if comment else "")
    for name, (path, declaration, text) in SINGLE.items():
        if declaration not in read(path):
            fail(f"{path} does not plant {name} any more: it has no '{declaration}'")
        faults[name] = (path, text)
    for name in aliases():
        del faults[name]
    for name, text in WORDS.items():
        faults[name] = (faults[name][0], text)
    parts = list(dict.fromkeys(part_of(name) for name in faults))
    return dict(sorted(faults.items(), key=lambda item: parts.index(part_of(item[0]))))


def aliases():
    """Faults of `crash` that plant one of the file system or of the journal: the same fault."""
    arms = re.findall(
        r"Some\(Mutation::(\w+)\) => faults\.(journal\.)?(\w+) = true,", read(ENUMS["crash"][0]))
    return {f"crash.{snake_case(variant)}": f"{'journal' if inner else 'fs'}.{field}" for variant, inner, field in arms}


def unlisted():
    """Declarations that look like planted faults, and are in no table above."""
    known = {(path, name) for path, name, _ in [*SWITCHES.values(), *ENUMS.values()]} | set(OTHERS)
    found = []
    for root in ["crates", "lab", "bench", "fuzz"]:
        for path in sorted(pathlib.Path(root).rglob("*.rs")):
            if "target" in path.parts:
                continue
            text = read(path)
            # The macro's tests declare none.
            if str(path) == "crates/faults/src/lib.rs":
                continue
            found += [f"{path} declares {name}" for name in NAMED.findall(text) if (str(path), name) not in known]
            calls = re.search(r"^ *(?:\w+::)?planted_faults! *[{(]", text, re.MULTILINE)
            if calls and str(path) not in {path for path, *_ in SWITCHES.values()}:
                found.append(f"{path} calls planted_faults!")
    return found


def declared():
    """All faults, or an error that names what is declared and not known here."""
    missing = unlisted()
    if missing:
        fail(*missing, "give them a part in scripts/faults.py, or say there that they are no planted faults")
    return sources()


def notes(path):
    """Faults that a run has found."""
    same, found = aliases(), set()
    for line in read(path).splitlines():
        kind, *rest = line.split("\t")
        if kind == "caught" and len(rest) == 2:
            found.add(same.get(rest[1], rest[1]))
    return found


def known(found, faults, path):
    unknown = sorted(found - set(faults))
    if unknown:
        fail(*(f"{path} notes {name}, which no source declares" for name in unknown))
    return found


def listed():
    """Faults in the document, with the tier that finds each."""
    if not DOCUMENT.exists():
        return {}
    row = re.compile(r"^\| `(\w+)` \| `(\w+)` \| .* \| (\w+) \|$", re.MULTILINE)
    return {f"{part}.{fault}": tier for part, fault, tier in row.findall(read(DOCUMENT))}


def percent(count, of):
    return f"{100 * count / of:.1f} %"


def about(part):
    return {**SWITCHES, **ENUMS}[part][2] if part in SWITCHES or part in ENUMS else ABOUT[part]


def lines_of(path, unless):
    return [line for line in read(path).splitlines() if line and not line.startswith("#") and not re.search(unless, line)]


def mutants_of_proofs():
    controls = len(lines_of("proofs/mutants/list", "^$")) - len(lines_of("proofs/mutants/list", r"\| = \|"))
    return [
        ("models in Coq", "proofs/mutants/list", len(lines_of("proofs/mutants/list", r"\| = \|")),
         f"a lemma or theorem; {controls} more lines are controls, which are accepted"),
        ("code of the journal", "proofs/mutants/code-list", len(lines_of("proofs/mutants/code-list", "^$")),
         "the checkers of traces, or the recovered state"),
        ("code of codecs and of the translation layer", "proofs/smt/mutants.list", len(lines_of("proofs/smt/mutants.list", "^$")),
         "an obligation, with a counterexample"),
        ("model in Alloy", "proofs/alloy/mutants.als", len(re.findall(r"^check ", read("proofs/alloy/mutants.als"), re.MULTILINE)),
         "a counterexample"),
    ]


def write(paths):
    faults = declared()
    runs = [known(notes(path), faults, path) for path in paths]
    before = listed() if len(runs) == 2 else {}

    def tier_of(name):
        for tier, run in zip(TIERS, runs):
            if name in run:
                return tier
        return "long" if before.get(name) == "long" else "none"

    tiers = {name: tier_of(name) for name in faults}
    parts = list(dict.fromkeys(part_of(name) for name in faults))
    counts = {tier: sum(t == tier for t in tiers.values()) for tier in [*TIERS, "none"]}
    rows = [
        "# Planted faults",
        "",
        "A test that cannot fail proves nothing. So rules are left out on purpose, one at a time, and a test must notice.",
        "No fault can be planted in a release: `scripts/no-faults.sh` shows it.",
        "",
        "`scripts/faults.sh --write` makes this page from the sources and from the notes of test runs: a test notes each fault",
        "that it has found. `scripts/faults.sh --check NOTES` fails if a run of the default tier has lost one.",
        "",
        f"Of {len(faults)} planted faults, the default tier finds {counts['default']} ({percent(counts['default'], len(faults))}),",
        f"the rest of the merge tier {counts['merge']}, the rest of the long tier {counts['long']}, and none of them {counts['none']}.",
        "",
        "| tier | tests |",
        "|---|---|",
        "| default | `cargo test --workspace` without `bench/`, and `crash self` |",
        "| merge | what `scripts/test.sh` runs besides: schedules of the journal, scripts, benchmarks' tests |",
        "| long | what `scripts/test.sh --long` runs besides |",
        "| none | none of them, or a run that somebody starts by hand |",
        "",
        "## Parts",
        "",
        "| part | planted in | faults | default | merge | long | none |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in parts:
        of = [tier for name, tier in tiers.items() if part_of(name) == part]
        each = " | ".join(str(of.count(tier)) for tier in [*TIERS, "none"])
        rows.append(f"| `{part}` | {about(part)} | {len(of)} | {each} |")
    each = " | ".join(str(counts[tier]) for tier in [*TIERS, "none"])
    rows += [
        f"| all | | {len(faults)} | {each} |",
        "",
        f"`crates/crash` has names of its own for {len(aliases())} faults of the journal and of the file system. They are counted once.",
        "Damaged images and failing devices are no planted faults, and are not counted.",
        "",
        "## Faults",
        "",
        "| part | fault | what is wrong | found by |",
        "|---|---|---|---|",
    ]
    for name, (_, text) in faults.items():
        part, fault = name.split(".")
        rows.append(f"| `{part}` | `{fault}` | {text.replace('|', chr(92) + '|')} | {tiers[name]} |")
    rows += [
        "",
        "## Add a fault",
        "",
        "1. Declare it where its part has the others. A new part gets a line in `scripts/faults.py`: until it has one,",
        "   `scripts/faults.sh --list` fails.",
        "2. After the assertion that shows the find, the test calls `steadfast_testkit::caught(\"part.fault\")`, or `caught_in`",
        "   with the planted value; a script calls `note_caught`.",
        "3. Run the tests with `STEADFAST_NOTES=/absolute/file`, and write this page again.",
        "",
        "## Mutants of the proofs",
        "",
        "`proofs/check` tries some of these changes of models and code, `proofs/check --all` tries all. Each must be refused.",
        "",
        "| changed | list | mutants | refused by |",
        "|---|---|---|---|",
    ]
    groups = mutants_of_proofs()
    rows += [f"| {what} | `{path}` | {count} | {by} |" for what, path, count, by in groups]
    rows += [
        f"| all | | {sum(count for _, _, count, _ in groups)} | |",
        "",
        "Besides, `proofs/pmcheck` searches each plan of stores in persistent memory with one fence less: none may do.",
    ]
    DOCUMENT.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{DOCUMENT}: {len(faults)} faults, of which {counts['default']} are found by the default tier, {counts['merge']} by the rest of the "
          f"merge tier, {counts['long']} by the rest of the long tier, {counts['none']} by none")


def check(paths):
    faults, rows = declared(), listed()
    wrong = [f"{name} ({faults[name][0]}) is not in {DOCUMENT}" for name in faults if name not in rows]
    wrong += [f"{DOCUMENT} lists {name}, which no source declares" for name in rows if name not in faults]
    for path in paths:
        found = known(notes(path), faults, path)
        expected = [name for name, tier in rows.items() if tier == "default"]
        lost = [name for name in expected if name in faults and name not in found]
        wrong += [f"{name} ({faults[name][0]}) is lost: no test has found it" for name in lost]
        print(f"{len(found & set(expected))} of {len(expected)} faults of the default tier are found")
    if wrong:
        fail(*wrong)


def main(what, *paths):
    if what == "--list":
        for name, (path, text) in declared().items():
            print(f"{name}\t{path}\t{text}")
    elif what == "--write":
        write(paths)
    else:
        check(paths)


main(*sys.argv[1:])
