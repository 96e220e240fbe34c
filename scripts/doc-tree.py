#!/usr/bin/env python3
"""Installs the documents for people who run volumes, and checks that their links resolve where they are installed.

  scripts/doc-tree.py install SOURCE DIR [--bin DIR]   README.md, docs/ and all documents that they link to, as files of DIR
                                                       that lie as in the repository; --bin is the directory of the program,
                                                       which unit files and rules for udev name (default /usr/local/bin)
  scripts/doc-tree.py check DIR                        each link of each document in DIR leads to a file of DIR

Exits 0, 1 (a link leads nowhere) or 2 (usage).
"""

import os
import re
import shutil
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# Where everything starts.
ROOTS = ["README.md", "docs"]
# Parts of docs/ that are no document: they are installed only if a document links to them.
UNLINKED = [".svg", ".json"]


def links(path):
    """The files that a document links to, relative to its own directory."""
    with open(path, encoding="utf-8") as file:
        text = CODE.sub("", file.read())
    for link in LINK.findall(text):
        link = link.split("#")[0]
        if link and "://" not in link and not link.startswith("mailto:"):
            yield link


def target(document, link):
    return os.path.normpath(os.path.join(os.path.dirname(document), link))


def wanted(source):
    """All files to install, relative to the source, and the links that lead nowhere."""
    found, wrong, queue = set(), [], list(ROOTS)
    while queue:
        name = queue.pop()
        path = os.path.join(source, name)
        if os.path.isdir(path):
            # Of a directory of sources, its page.
            entries = sorted(os.listdir(path)) if name.startswith("docs") else ["README.md"]
            listed = [os.path.join(name, entry) for entry in entries]
            queue += [entry for entry in listed if not entry.endswith(tuple(UNLINKED))]
        elif not os.path.exists(path):
            wrong.append(f"{name} is not there")
        elif name not in found:
            found.add(name)
            if name.endswith(".md"):
                for link in links(path):
                    linked = target(name, link)
                    if linked.startswith("..") or not os.path.exists(os.path.join(source, linked)):
                        wrong.append(f"{name}: {link} is not there")
                    else:
                        queue.append(linked)
    return sorted(found), wrong


def install(source, destination, program_dir):
    names, wrong = wanted(source)
    for name in names:
        to = os.path.join(destination, name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        if name.endswith((".service", ".rules")):
            with open(os.path.join(source, name), encoding="utf-8") as file:
                text = file.read().replace("/usr/local/bin/", program_dir.rstrip("/") + "/")
            with open(to, "w", encoding="utf-8") as file:
                file.write(text)
        else:
            shutil.copyfile(os.path.join(source, name), to)
        os.chmod(to, 0o644)
    return wrong


def check(root):
    wrong, documents, count = [], 0, 0
    for directory, _, files in os.walk(root):
        for name in sorted(files):
            if not name.endswith(".md"):
                continue
            documents += 1
            path = os.path.join(directory, name)
            for link in links(path):
                count += 1
                linked = target(path, link)
                inside = os.path.commonpath([os.path.abspath(root), os.path.abspath(linked)]) == os.path.abspath(root)
                if not inside or not os.path.exists(linked):
                    wrong.append(f"{os.path.relpath(path, root)}: {link} is not there")
    if count == 0:
        wrong.append(f"{root} has no document with a link")
    else:
        print(f"  {documents} documents, {count} links: {'each resolves' if not wrong else f'{len(wrong)} lead nowhere'}")
    return wrong


def main(words):
    if words and words[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    if len(words) in (3, 5) and words[0] == "install" and words[3:4] in ([], ["--bin"]):
        wrong = install(words[1], words[2], words[4] if len(words) == 5 else "/usr/local/bin")
    elif len(words) == 2 and words[0] == "check":
        wrong = check(words[1])
    else:
        print("doc-tree.py: wrong arguments (see --help)", file=sys.stderr)
        return 2
    for line in wrong:
        print(f"doc-tree.py: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
