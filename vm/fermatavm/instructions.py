# SPDX-License-Identifier: GPL-2.0
"""Count instructions. Usage: python3 -m fermatavm.instructions [scheduler|module] [OPTION]...

scheduler (the default): count those of the scheduler for a switch, for a slot's gap from the status read to the next START, and for calls
under callgrind, and compare them with rust/bench/instructions.json. The same program built by the same compiler gives the same counts on any machine; a difference of more
than 5 %, up or down, fails. --update writes the counts of this compiler into the file: commit the file if a change was intended, or if
the build root has a new compiler.

module: count those of fermata.ko per switch and per call, with a plugin for QEMU's TCG (tools/bench/plugin). The count includes interrupt
handler, timer and calls, but not the functions of the kernel that they call. --functions N also prints the N functions with the most
instructions of each phase. --sections measures the longest section with interrupts off, under a raw spinlock, in instructions and in
accesses to registers of the card, while calls and events are at the limits of what a user can cause. It fails if a section exceeds
SECTION_MAX or ACCESSES_MAX. --profile relay measures on a card with a relay.
"""

import argparse
import bisect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import boot
from .common import BUILD, JOBS, TOP, die, run, say, write_report
from .guest import MEASURED

BASELINE = TOP / "rust/bench/instructions.json"
PROGRAM = MEASURED.built / "fermata-sched-instructions"
TOLERANCE = 0.05
UPDATE = "vm/enter python3 -m fermatavm.instructions --update"

NAME = "module-count"
CARD = "slots=membench,0.speed=64,0.save_us=100,0.restore_us=100"
# As many slots as a card can have, and as many contexts as a card has by default.
CARD_OF_SECTIONS = "slots=" + "+".join(["membench"] * 8)
CONTEXTS = 4096
# Limits of a section.
SECTION_MAX, ACCESSES_MAX = 500_000, 600


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
    """Return the functions of rust/scheduler that run in a case `POLICY OPERATION`, by file. The program is built without optimizations,
    which inline functions."""
    target = BUILD / "unoptimized"
    options = ["--config", "profile.dev.opt-level=0", "--target-dir", target, "--locked", "-j", JOBS]
    run(["cargo", "build", *options, "--package", "fermata-sched-bench", "--bins"], cwd=TOP)
    (program,) = target.glob(f"**/debug/{PROGRAM.name}")
    text, _ = callgrind(program, case, "--compress-strings=no")
    found, file = {}, None
    for line in text.splitlines():
        if line.startswith("fl="):
            file = re.search(r"/scheduler/([\w/]+)\.rs$", line)
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


def count_scheduler(parser, words):
    parser.add_argument("--update", action="store_true", help="write the baseline of this compiler")
    parser.add_argument("--slots", type=int, default=1, help="slots of the card (%(default)s); without 1 nothing is compared")
    parser.add_argument("--files", metavar="CASE", help="print only the files of rust/scheduler that a case such as 'fair start-vacant' "
                        "passes through, with the number of functions")  # fmt: skip
    args = parser.parse_args(words)
    if args.files:
        found = functions(args.files)
        for file in sorted(found):
            print(f"{file:<24} {len(found[file]):>4}")
        print(f"{len(found)} files, {sum(map(len, found.values()))} functions")
        return
    build = ["cargo", "build", "--release", "--locked", "-j", JOBS, "--package", "fermata-sched-bench", "--bins"]
    run(build, cwd=TOP)
    cases = subprocess.run([PROGRAM], capture_output=True, text=True, check=True).stdout.splitlines()
    with ThreadPoolExecutor(JOBS) as pool:
        counts = dict(zip(cases, pool.map(count, [f"{case} {args.slots}" for case in cases]), strict=True))
    for case in cases:
        print(f"{case:<24} {counts[case]:>7}")
    if args.slots != 1:
        return
    write_report("instructions", {"rustc": compiler(), "instructions": counts})
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


def build_plugin():
    plugin = BUILD / "count.so"
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    run(["gcc", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", *warnings, TOP / "tools/bench/plugin/count.c", "-o", plugin])
    return plugin


def boot_with_plugin(command, out, *options):
    """Run a program in a machine with the plugin; return the file that the program left."""
    os.environ["FERMATA_ACCEL"] = "tcg"
    plugin = f"file={build_plugin()},out={out}"
    options = ["--release", "--name", NAME, "--iommu", "intel", "--qemu=-plugin", f"--qemu={plugin}", "--timeout", "900", *options]
    status = boot.run(boot.parse([*options, "--", "fermata-bench", *command]))
    if status:
        sys.exit(status)
    return json.loads((BUILD / f"vm/{NAME}/files/count.json").read_text())


def counts_of(path, text, size):
    """Return the instructions of the module since boot, by label and offset in the module's code."""
    found = {}
    for kind, label, address, instructions, *_ in map(str.split, path.read_text().splitlines()):
        offset = int(address, 16) - text
        if kind == "block" and 0 <= offset < size:
            found.setdefault(int(label), Counter())[offset] += int(instructions)
    return found


def sections_of(path, text):
    """Return the longest sections before each label: (instructions, accesses, offset of the section's begin)."""
    found = {}
    for kind, label, *words in map(str.split, path.read_text().splitlines()):
        if kind == "section" and int(words[0], 16):
            caller, instructions, accesses = int(words[0], 16), int(words[1]), int(words[2])
            found.setdefault(int(label), []).append((instructions, accesses, caller - text))
    return found


def functions_of(module):
    """Return the addresses of the functions in .text of a module, and their names by address."""
    table = subprocess.run(["objdump", "-t", "-C", module], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in table.splitlines():
        symbol, _, rest = line.partition("\t")
        if symbol.split()[-2:] == ["F", ".text"]:
            # The size of the symbol, then its name, which may have blanks.
            found[int(symbol.split()[0], 16)] = rest.split(maxsplit=1)[-1].removeprefix(".hidden ")
    return sorted(found), found


def print_functions(spent, operations, module, most):
    starts, names = functions_of(module)
    total = Counter()
    for offset, count in spent.items():
        total[starts[bisect.bisect_right(starts, offset) - 1]] += count
    for start, count in total.most_common(most):
        print(f"    {count / operations:>8.1f}  {names[start][:150]}")


def count_instructions(rest, most, profile):
    out = BUILD / "count.out"
    workload = boot_with_plugin(["count", *rest], out, "--card", f"profile={profile},{CARD}")
    by_label = counts_of(out, int(workload["text"], 16), workload["bytes"])
    report = {}
    for number, phase in enumerate(workload["phases"]):
        spent = by_label.get(2 * number + 1, Counter()) - by_label.get(2 * number, Counter())
        report[phase["name"]] = round(spent.total() / phase["operations"])
        print(f"{phase['name']:<48} {report[phase['name']]:>7}")
        if most:
            print_functions(spent, phase["operations"], BUILD / "module-7.2/fermata.ko", most)
    if report["nothing"] or not all(count for name, count in report.items() if name != "nothing"):
        die('the plugin counted instructions of the phase "nothing", or none of another phase')
    write_report(report_name("module-instructions", profile), report)


def report_name(name, profile):
    """Return the name of the report of a measurement: irq is the profile that has none in it."""
    return name if profile == "irq" else f"{name}-{profile}"


def find_sections(rest, profile):
    out = BUILD / "sections.out"
    params = f"max_contexts={CONTEXTS} max_contexts_group={CONTEXTS}"
    command = ["sections", "--contexts", str(CONTEXTS), *rest]
    card = f"profile={profile},{CARD_OF_SECTIONS}"
    workload = boot_with_plugin(command, out, "--card", card, "--params", params, "--memory", "2G")
    by_label = sections_of(out, int(workload["text"], 16))
    starts, names = functions_of(BUILD / "module-7.2/fermata.ko")
    report = {}
    print(f"{'longest section with interrupts off':<40} {'instructions':>12} {'accesses':>9}")
    for number, phase in enumerate(workload["phases"]):
        found = by_label.get(2 * number + 1, [])
        if not found:
            die(f"{phase['name']}: the plugin saw no section")
        report[phase["name"]] = {"instructions": max(found)[0], "accesses": max(accesses for _, accesses, _ in found)}
        print(f"{phase['name']:<40} {max(found)[0]:>12} {report[phase['name']]['accesses']:>9}")
        for instructions, accesses, offset in sorted({max(found), max(found, key=lambda section: section[1])}):
            print(f"    {instructions:>8} {accesses:>5}  {names[starts[bisect.bisect_right(starts, offset) - 1]][:150]}")
    write_report(report_name("module-sections", profile), report)
    for name, most in ("instructions", SECTION_MAX), ("accesses", ACCESSES_MAX):
        longest = max(report, key=lambda phase: report[phase][name])
        if report[longest][name] > most:
            die(f"{longest}: interrupts are off for {report[longest][name]} {name}, more than {most}")


def count_module(parser, words):
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="print the N functions with most instructions")
    parser.add_argument("--profile", choices=["irq", "relay"], default="irq", help="of the card (default: irq)")
    parser.add_argument("--sections", action="store_true", help="measure the longest sections with interrupts off")
    args, rest = parser.parse_known_args(words)
    if args.sections:
        find_sections(rest, args.profile)
    else:
        count_instructions(rest, args.functions, args.profile)


def main(*words):
    parts = {"scheduler": count_scheduler, "module": count_module}
    part, words = (words[0], words[1:]) if words and words[0] in parts else ("scheduler", words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts[part](parser, words)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
