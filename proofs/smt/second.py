#!/usr/bin/env python3
"""Gives a second solver what the first one was asked, and compares the answers.

second.py SCRIPT: SCRIPT.answers holds the first one's, a line each. Bitwuzla, or cvc5 if that is
not installed.
"""

import contextlib
import os
import sys
import tempfile


def bitwuzla_answers(script):
    import bitwuzla

    # It prints from within the library, past Python's own standard output.
    with tempfile.TemporaryFile("w+") as out:
        saved = os.dup(1)
        os.dup2(out.fileno(), 1)
        try:
            bitwuzla.Parser(bitwuzla.TermManager(), bitwuzla.Options()).parse(script)
        finally:
            with contextlib.suppress(OSError):
                os.fsync(1)
            os.dup2(saved, 1)
        out.seek(0)
        return "bitwuzla", out.read().split()


def cvc5_answers(script):
    import cvc5

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("incremental", "true")
    symbols = cvc5.SymbolManager(solver.getTermManager())
    parser = cvc5.InputParser(solver, symbols)
    parser.setFileInput(cvc5.InputLanguage.SMT_LIB_2_6, script)
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += command.invoke(solver, symbols)
    return "cvc5", said.split()


def main():
    script = sys.argv[1]
    try:
        name, answers = bitwuzla_answers(script)
    except ImportError:
        name, answers = cvc5_answers(script)
    with open(script + ".answers") as file:
        expected = file.read().split()
    differ = sum(a != b for a, b in zip(answers, expected))
    print(f"{name}: {len(answers)} of {len(expected)} answers, {differ} differ")
    if differ or not answers or len(answers) != len(expected):
        sys.exit(1)


main()
