# SPDX-License-Identifier: GPL-2.0
"""Count the instructions of the scheduler for a switch and for calls under callgrind, and compare them with
rust/bench/instructions.json.

The same program built by the same compiler gives the same counts on any machine; a difference of more than 5 %, up or down, fails.
--update writes the counts of this compiler into the file: commit the file if a change was intended, or if the build root has a new
compiler.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .common import BUILD, JOBS, TOP, die, run, say, write_report
from .guest import MEASURED

BASELINE = TOP / "rust/bench/instructions.json"
PROGRAM = MEASURED.built / "fermata-sched-instructions"
TOLERANCE = 0.05
UPDATE = "vm/enter python3 -m fermatavm.instructions --update"


def compiler():
    text = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout
    return text.split()[1]


def callgrind(program, case, *options):
    """Run an operation of a case `POLICY OPERATION` under callgrind, which counts the function `counted` of the program, by its mangled
    name. Return callgrind's file, and the finished process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        options = ["--tool=callgrind", f"--callgrind-out-file={out}", "--collect-atstart=no", "--toggle-collect=*counted*", *options]
        done = run(["valgrind", *options, program, *case.split()], capture_output=True, text=True)
        return out.read_text(), done


def count(case):
    """Return the instructions of an operation of a case `POLICY OPERATION`."""
    text, done = callgrind(PROGRAM, case)
    found = re.search(r"^(?:summary|totals): (\d+)", text, re.M)
    times = int(done.stdout.split()[-1])
    if not found or int(found.group(1)) < times:
        die(f"callgrind counted nothing of {case}: {done.stderr[-500:]}")
    return round(int(found.group(1)) / times)


def functions(case):
    """Return the functions of rust/sched that run in a case `POLICY OPERATION`, by file. The program is built without optimizations,
    which inline functions."""
    target = BUILD / "unoptimized"
    options = ["--config", "profile.dev.opt-level=0", "--target-dir", target, "--locked", "--quiet", "-j", JOBS]
    run(["cargo", "build", *options, "--package", "fermata-sched-bench", "--bins"], cwd=TOP)
    (program,) = target.glob(f"**/debug/{PROGRAM.name}")
    text, _ = callgrind(program, case, "--compress-strings=no")
    found, file = {}, None
    for line in text.splitlines():
        if line.startswith("fl="):
            file = re.search(r"/sched/(\w+)\.rs$", line)
        elif line.startswith("fn=") and file:
            found.setdefault(file.group(1), set()).add(line)
    return found


def compare(counts, known):
    """Return a line for each count that differs from the baseline."""
    wrong = [f"{case}: not in the baseline" for case in counts if case not in known]
    wrong += [f"{case}: in the baseline, but not counted any more" for case in known if case not in counts]
    for case in counts.keys() & known.keys():
        change = counts[case] / known[case] - 1
        if abs(change) > TOLERANCE:
            wrong.append(f"{case}: {counts[case]} instructions, {known[case]} in the baseline ({change:+.1%})")
    return sorted(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the baseline of this compiler")
    parser.add_argument("--files", metavar="CASE", help="print only the files of rust/sched that a case such as 'fair start-vacant' "
                        "passes through, with the number of functions")  # fmt: skip
    args = parser.parse_args()
    if args.files:
        found = functions(args.files)
        for file in sorted(found):
            print(f"{file:<16} {len(found[file]):>4}")
        print(f"{len(found)} files, {sum(map(len, found.values()))} functions")
        return
    build = ["cargo", "build", "--release", "--locked", "--quiet", "-j", JOBS, "--package", "fermata-sched-bench", "--bins"]
    run(build, cwd=TOP)
    cases = subprocess.run([PROGRAM], capture_output=True, text=True, check=True).stdout.splitlines()
    with ThreadPoolExecutor(JOBS) as pool:
        counts = dict(zip(cases, pool.map(count, cases), strict=True))
    write_report("instructions", {"rustc": compiler(), "instructions": counts})
    for case in cases:
        print(f"{case:<24} {counts[case]:>7}")
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if args.update:
        baseline[compiler()] = counts
        BASELINE.write_text(json.dumps(baseline, indent=1) + "\n")
        say(f"baseline of rustc {compiler()} written: commit rust/bench/instructions.json")
        return
    if compiler() not in baseline:
        die(f"no baseline for rustc {compiler()}: look at the counts above, then run {UPDATE} and commit rust/bench/instructions.json")
    wrong = compare(counts, baseline[compiler()])
    for line in wrong:
        print(line)
    if wrong:
        die(f"more than {TOLERANCE:.0%} off; if that is meant: {UPDATE}, and commit rust/bench/instructions.json with the reason")
    say(f"{len(counts)} counts within {TOLERANCE:.0%} of the baseline of rustc {compiler()}")


if __name__ == "__main__":
    sys.exit(main())
