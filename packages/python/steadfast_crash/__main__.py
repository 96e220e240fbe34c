"""``python -m steadfast_crash workload|check FILE NAME``: one function of a module, as a process."""

import importlib.util
import os
import sys
from pathlib import Path

from . import State


def lines(variable):
    path = os.environ.get(variable)
    return Path(path).read_text().splitlines() if path else []


def main():
    role, path, name = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("steadfast_crash_target", path)
    function = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(function)
    for part in name.split("."):
        function = getattr(function, part)
    dir = Path(os.environ["CRASH_DIR"])
    if role == "workload":
        function(dir)
        return 0
    try:
        function(State(dir, lines("CRASH_ACKED"), lines("CRASH_ISSUED")))
    except Exception as error:  # Whatever a check raises is its verdict.
        # The first line groups findings: of an assertion its message, without what pytest adds.
        text = str(error).splitlines()[0] if str(error) else ""
        print(text or type(error).__name__ if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
