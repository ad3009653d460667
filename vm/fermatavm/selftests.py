# SPDX-License-Identifier: GPL-2.0
"""Compare the selftests with what runs them, with what they must cover, and with what docs/ says about them.

Exits 1 with messages if
    a program that selftests/Makefile builds is neither one of those that selftests/run runs nor in SEPARATE,
    a program does not begin with a comment that says what it tests,
    a point or a defect of selftests/points.toml has no test, names a test that does not exist, or is missing there although a test is
        named after it,
    a mutation of selftests/mutations/table.toml names a test, a point or a defect that does not exist, or
    a page of docs/ names a test, as PROGRAM.TEST, that selftests/PROGRAM.c does not have, or a test without its program.

--table prints what the selftests are instead: the programs, and the tests of each point and defect. The text is also written to
build/reports/selftests.md.
"""

import argparse
import re
import sys
import tomllib

from .common import BUILD, TOP, die

SELFTESTS = TOP / "selftests"

# Programs that need a machine of their own, or are run by another program: what runs them.
SEPARATE = {
    "failnth": "vm/checks-debug",
    "hangs": "selftests/harness",
    "hotplug": "vm/checks-all",
    "kexec": "vm/checks-all",
    "neighbours": "vm/checks-all",
    "reset": "vm/checks-all",
    "riscv": "vm/checks",
}
TEST = re.compile(r"^(?:FM_TEST|SLOW_TEST|TEST_F_TIMEOUT|TEST|WALK\w*)\((?:\w+, )?(\w+)", re.M)
# A name of a test in a page, with its program; a star stands for all tests whose names begin with it. Links and paths have no names.
NAME = re.compile(r"(?<![\w./#-])(?:(\w+)\.)?(\w+)(\*?)(?![\w(/-])")
POINT = re.compile(r"(point|defect)_(\d\d)_")
# Code, in which names like PROGRAM.TEST are members of structures.
CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", re.M | re.S)
ENDINGS = {"c", "md", "rs", "slice", "svg"}
# The comment at the head of a program, in C or in sh.
HEAD = re.compile(r"\A// SPDX.*\n/\*((?s:.*?))\*/|\A#!.*\n# SPDX.*\n((?:#.*\n)+)")


def one(pattern, text):
    return re.search(pattern, text, re.M).group(1)


def built():
    """Return the programs that selftests/Makefile builds of C, in the order of the file."""
    makefile = (SELFTESTS / "Makefile").read_text()
    return one(r"^TESTS := (.*)$", makefile).split() + one(r"^TESTS32 := (.*)$", makefile).split()


def source_of(program):
    """Return the text of a program. The 32-bit programs are built from the same sources as those for 64 bits."""
    for name in (f"{program}.c", program, f"{program.removesuffix('32')}.c"):
        if (SELFTESTS / name).exists():
            return (SELFTESTS / name).read_text()
    return ""


def tests_of(program):
    file = SELFTESTS / f"{program}.c"
    return TEST.findall(file.read_text()) if file.exists() else []


def about(program):
    """Return the first paragraph of the comment at the head of a program, in one line."""
    found = HEAD.match(source_of(program))
    text = re.sub(r"(?m)^[ \t]*[*#][ \t]?", "", found.group(1) or found.group(2)) if found else ""
    return " ".join(text.strip().split("\n\n")[0].split())


def entries(kind):
    """Return the points or the defects that must be covered, by number."""
    listed = tomllib.loads((SELFTESTS / "points.toml").read_text())[kind]
    return {entry["number"]: entry for entry in listed}


def mutations():
    return tomllib.loads((SELFTESTS / "mutations/table.toml").read_text())["mutation"]


def named_after(kind, tests):
    """Return the tests that are named after a point or a defect, by its number."""
    found = {}
    for program, names in tests.items():
        for name in names:
            match = POINT.match(name)
            if match and match.group(1) == kind:
                found.setdefault(int(match.group(2)), []).append(f"{program}.{name}")
    return found


def has(tests, name):
    program, _, test = name.partition(".")
    return test in tests.get(program, [])


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


def wrong_comments(programs):
    for name in programs:
        if not about(name):
            yield f"selftests/{name}: no comment at its head says what it tests"


def wrong_entries(kind, tests):
    """Yield points or defects that nothing covers, and names of tests or of entries that do not exist."""
    covered, named = entries(kind), named_after(kind, tests)
    for number, entry in covered.items():
        if not (named.get(number) or entry.get("tests") or entry.get("also")):
            yield f"selftests/points.toml: nothing covers {kind} {number}"
        for name in entry.get("tests", []):
            if not has(tests, name):
                yield f"selftests/points.toml: {kind} {number}: there is no test {name}"
    for number in sorted(named.keys() - covered.keys()):
        yield f"selftests/points.toml: there is no {kind} {number}, after which {named[number][0]} is named"
    for mutation in mutations():
        number = mutation.get(kind, 0)
        if number and number not in covered:
            yield f"selftests/mutations/table.toml: {mutation['name']}: there is no {kind} {number}"


def wrong_mutations(tests):
    for mutation in mutations():
        if not has(tests, mutation["test"]):
            yield f"selftests/mutations/table.toml: {mutation['name']}: there is no test {mutation['test']}"


def wrong_names(file, tests):
    """Yield names of tests in a page, outside of code, that do not exist."""
    text = CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group(0)), file.read_text())
    for number, line in enumerate(text.splitlines(), 1):
        for program, name, star in NAME.findall(line):
            if program in tests and name not in ENDINGS:
                if not any(test.startswith(name) if star else test == name for test in tests[program]):
                    yield f"{file.relative_to(TOP)}:{number}: selftests/{program}.c has no test {name}{star}"
            elif POINT.match(name):
                yield f"{file.relative_to(TOP)}:{number}: {name} stands behind no program of selftests/"


def table(programs, tests):
    """Return the programs, points and defects as tables in Markdown."""
    lines = ["| program | tests | about |", "| --- | --: | --- |"]
    lines += [f"| {name} | {len(tests.get(name, [])) or ''} | {about(name)} |" for name in programs]
    for kind in ("point", "defect"):
        lines += ["", f"| {kind} | | covered by |", "| --: | --- | --- |"]
        for number, entry in entries(kind).items():
            by = named_after(kind, tests).get(number, []) + entry.get("tests", [])
            by += [f"the card's checker ({', '.join(entry['card'])})"] if "card" in entry else []
            by += [entry["also"]] if "also" in entry else []
            lines.append(f"| {number} | {entry['title']} | {'; '.join(by)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the programs, points and defects")
    args = parser.parse_args()
    programs = [*built(), "harness"]
    tests = {program: tests_of(program) for program in programs}
    if args.table:
        text = table(programs, tests)
        (BUILD / "reports").mkdir(parents=True, exist_ok=True)
        (BUILD / "reports/selftests.md").write_text(text)
        print(text, end="")
        return
    wrong = [*wrong_runs(programs), *wrong_comments(programs), *wrong_mutations(tests)]
    wrong += [*wrong_entries("point", tests), *wrong_entries("defect", tests)]
    for file in sorted((TOP / "docs").rglob("*.md")):
        wrong += wrong_names(file, tests)
    if wrong:
        die("\nfermata: ".join(wrong))


if __name__ == "__main__":
    sys.exit(main())
