# SPDX-License-Identifier: GPL-2.0
"""Compare the selftests with what runs them and with what docs/ says about them.

Exits 1 with messages if
    a program that selftests/Makefile builds is neither one of those that selftests/run runs nor in SEPARATE,
    docs/testing.md does not have each program once in its table of programs,
    a page of docs/ names a test, as PROGRAM.TEST, that selftests/PROGRAM.c does not have, or a test without its program, or
    docs/testing.md does not have each mutation of selftests/mutations/table.toml, with its point and test, in its table of mutations."""

import re
import sys
import tomllib

from .common import TOP, die

SELFTESTS = TOP / "selftests"
TESTING = TOP / "docs/testing.md"

# Programs that need a machine of their own, or are run by another program: what runs them.
SEPARATE = {
    "failnth": "vm/checks-debug",
    "hangs": "selftests/harness",
    "hotplug": "vm/checks-all",
    "kexec": "vm/checks-all",
    "reset": "vm/checks-all",
    "riscv": "vm/checks",
}
TEST = re.compile(r"^(?:FM_TEST|SLOW_TEST|TEST_F_TIMEOUT|TEST|WALK\w*)\((?:\w+, )?(\w+)", re.M)
# A name of a test in a page, with its program; a star stands for all tests whose names begin with it. Links and paths have no names.
NAME = re.compile(r"(?<![\w./#-])(?:(\w+)\.)?(\w+)(\*?)(?![\w(/-])")
POINT = re.compile(r"(?:point|defect)_\d\d_")
# Code, in which names like PROGRAM.TEST are members of structures.
CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", re.M | re.S)
ENDINGS = {"c", "md", "rs", "slice", "svg"}


def one(pattern, text):
    return re.search(pattern, text, re.M).group(1)


def built():
    """Return the programs that selftests/Makefile builds of C, in the order of the file."""
    makefile = (SELFTESTS / "Makefile").read_text()
    return one(r"^TESTS := (.*)$", makefile).split() + one(r"^TESTS32 := (.*)$", makefile).split()


def tests_of(program):
    source = SELFTESTS / f"{program}.c"
    return set(TEST.findall(source.read_text())) if source.exists() else set()


def rows_below(text, head):
    """Return the cells of the table of a page that has this head."""
    table = one(rf"^{re.escape(head)}\n\|[ -|]*\n((?:\|.*\n)+)", text)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def wrong_runs(programs):
    """Yield programs that nothing runs, and entries for programs that do not exist."""
    run = one(r"for t in (.*); do", (SELFTESTS / "run").read_text()).split()
    for name in sorted(set(programs) - set(run) - SEPARATE.keys()):
        yield f"selftests/run does not run {name} by default"
    for name in sorted((set(run) | SEPARATE.keys()) - set(programs) - {"harness"}):
        yield f"selftests/Makefile builds no {name}"
    for name, where in SEPARATE.items():
        if not re.search(rf"/selftests/(?:[\w ]* )?{name}\b|\./{name}\b", (TOP / where).read_text()):
            yield f"{where} does not run {name}"


def wrong_programs(programs, page):
    listed = [name for row in rows_below(page, "| program | about |") for name in row[0].split(", ")]
    for name in sorted({*programs, "harness"} ^ set(listed)):
        yield f"docs/testing.md: {name} is in only one of selftests/Makefile and the table of programs"
    if len(set(listed)) != len(listed):
        yield "docs/testing.md: a program is twice in the table of programs"


def wrong_names(file, tests):
    """Yield names of tests in a page, outside of code, that do not exist."""
    text = CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group(0)), file.read_text())
    for number, line in enumerate(text.splitlines(), 1):
        for program, name, star in NAME.findall(line):
            if program in tests and name not in ENDINGS:
                if not any(test.startswith(name) if star else test == name for test in tests[program]):
                    yield f"docs/{file.name}:{number}: selftests/{program}.c has no test {name}{star}"
            elif POINT.match(name):
                yield f"docs/{file.name}:{number}: {name} stands behind no program of selftests/"


def wrong_mutations(page):
    """Yield mutations whose row is missing or has another point or test, and rows without a mutation."""
    rows = {row[0]: row for row in rows_below(page, "| mutation | point | selftest (card, IOMMU) | result |")}
    table = tomllib.loads((SELFTESTS / "mutations/table.toml").read_text())["mutation"]
    for name in sorted(rows.keys() - {mutation["name"] for mutation in table}):
        yield f"docs/testing.md: there is no mutation {name}"
    for mutation in table:
        name, defect = mutation["name"], mutation.get("defect")
        point = f"defect {defect}" if defect else str(mutation["point"] or "")
        row = rows.get(name)
        if row is None or (row[1], row[2].split(" ")[0]) != (point, mutation["test"]):
            yield f"docs/testing.md: the row of the mutation {name} must begin with | {name} | {point} | {mutation['test']}"


def main():
    programs, page = built(), TESTING.read_text()
    tests = {program: tests_of(program) for program in programs}
    wrong = [*wrong_runs(programs), *wrong_programs(programs, page), *wrong_mutations(page)]
    for file in sorted((TOP / "docs").glob("*.md")):
        wrong += wrong_names(file, tests)
    if wrong:
        die("\nfermata: ".join(wrong))


if __name__ == "__main__":
    sys.exit(main())
