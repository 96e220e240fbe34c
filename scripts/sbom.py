#!/usr/bin/env python3
"""What a program of a release is made of.

  scripts/sbom.py bom [OPTION…]        a bill of materials: CycloneDX 1.6, JSON
  scripts/sbom.py licences [OPTION…]   the licences of the crates in the program, with their texts

  --target TRIPLE         the crates for this target (default: this machine's)
  --no-default-features   without default features
  --features LIST         with these features

Writes to the standard output, the same bytes for the same commit: the time is SOURCE_DATE_EPOCH. Exits 0, 1 or 2 (usage).
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = "steadfast-cli"
LICENCE_FILE = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)
# Part of each static program, and no crate.
BESIDE = """The Rust standard library: MIT OR Apache-2.0. Copyright (c) The Rust Project contributors.
Static programs, musl libc: MIT. Copyright (c) 2005-2024 Rich Felker, et al.
The texts of MIT and Apache-2.0 are among those below.
"""


def cargo(*words):
    done = subprocess.run(["cargo", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"sbom.py: 'cargo {' '.join(words)}' fails")
    return done.stdout


class Program:
    """The packages of the program, as cargo resolves them for it alone."""

    def __init__(self, target, selection):
        filtered = ["--filter-platform", target]
        self.metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", *filtered, *self.of_cli(selection)))
        self.linked = self.tree("normal", target, selection)
        self.used = self.tree("normal,build", target, selection)
        packages = [p for p in self.metadata["packages"] if (p["name"], p["version"]) in self.used]
        self.packages = sorted(packages, key=lambda p: (p["name"], p["version"]))
        if len(self.packages) != len(self.used):
            sys.exit("sbom.py: 'cargo tree' and 'cargo metadata' disagree on the packages")
        with open(os.path.join(ROOT, "Cargo.lock"), "rb") as file:
            locked = tomllib.load(file)["package"]
        self.checksums = {(p["name"], p["version"]): p.get("checksum") for p in locked}

    @staticmethod
    def of_cli(selection):
        """The same selection for 'cargo metadata', which takes the whole workspace."""
        if "--features" not in selection:
            return selection
        at = selection.index("--features") + 1
        named = ",".join(f"{PACKAGE}/{feature}" for feature in selection[at].split(","))
        return [*selection[:at], named, *selection[at + 1 :]]

    @staticmethod
    def tree(edges, target, selection):
        shown = cargo("tree", "--locked", "-p", PACKAGE, "-e", edges, "--target", target, "--prefix", "none", *selection)
        lines = (line.split() for line in shown.splitlines() if line.strip())
        return {(words[0], words[1].removeprefix("v")) for words in lines}


def licence(package):
    return (package["license"] or "NOASSERTION").replace("/", " OR ")


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(program, package):
    key = (package["name"], package["version"])
    made = {
        "type": "application" if package["name"] == PACKAGE else "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "scope": "required" if key in program.linked else "excluded",
        "licenses": [{"expression": licence(package)}],
        "purl": purl(package),
    }
    if program.checksums.get(key):
        made["hashes"] = [{"alg": "SHA-256", "content": program.checksums[key]}]
    return made


def bom(program):
    refs = {package["id"]: purl(package) for package in program.packages}
    dependencies = []
    for node in program.metadata["resolve"]["nodes"]:
        if node["id"] in refs:
            on = []
            for dependency in node["deps"]:
                kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
                if kinds != {"dev"} and dependency["pkg"] in refs:
                    on.append(refs[dependency["pkg"]])
            dependencies.append({"ref": refs[node["id"]], "dependsOn": sorted(set(on))})
    components = [component(program, package) for package in program.packages]
    itself = next(made for made in components if made["name"] == PACKAGE)
    del itself["scope"]
    body = {
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0")))),
            "component": itself,
        },
        "components": [made for made in components if made is not itself],
        "dependencies": sorted(dependencies, key=lambda d: d["ref"]),
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    head = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
    }
    print(json.dumps(head | body, indent=1, ensure_ascii=False))


def licences(program):
    """Each text once, below the crates that bring it."""
    brought = {}
    without = []
    for package in program.packages:
        if (package["name"], package["version"]) not in program.linked or package["source"] is None:
            continue
        title = f"{package['name']} {package['version']} ({licence(package)})"
        directory = os.path.dirname(package["manifest_path"])
        names = [name for name in sorted(os.listdir(directory)) if LICENCE_FILE.match(name)]
        texts = []
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts.append("\n".join(line.rstrip() for line in file.read().strip().splitlines()))
        if not texts:
            without.append(f"{title}, by {', '.join(package['authors']) or 'its contributors'}")
        for text in texts:
            brought.setdefault(text, []).append(title)
    rule = "=" * 100
    print(f"The program contains Steadfast (MIT OR Apache-2.0) and the following.\n\n{BESIDE}")
    for text, titles in sorted(brought.items(), key=lambda item: (item[1], item[0])):
        print(rule)
        print("\n".join(titles))
        print(f"{rule}\n{text}\n")
    if without:
        print(f"{rule}\nThese packages come without a text; the licences named are among those above.\n{rule}")
        print("\n".join(without))


def main(words):
    if words and words[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    selection, target, rest = [], None, words[1:]
    while rest:
        word = rest.pop(0)
        if word == "--no-default-features":
            selection.append(word)
        elif word in ("--target", "--features") and rest:
            value = rest.pop(0)
            if word == "--target":
                target = value
            else:
                selection += [word, value]
        else:
            print(f"sbom.py: wrong argument '{word}' (see --help)", file=sys.stderr)
            return 2
    if not words or words[0] not in ("bom", "licences"):
        print("sbom.py: which one: bom or licences? (see --help)", file=sys.stderr)
        return 2
    if target is None:
        shown = subprocess.run(["rustc", "-vV"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
        target = re.search(r"^host: (.*)$", shown, re.MULTILINE)[1]
    program = Program(target, selection)
    (bom if words[0] == "bom" else licences)(program)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
