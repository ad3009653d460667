# SPDX-License-Identifier: GPL-2.0
"""Count the instructions of fermata.ko per switch and per call, by a plugin of QEMU's TCG (tools/bench/plugin).

The count includes interrupt handler, timer and calls, but not the functions of the kernel that they call. --functions N also prints
the N functions with most instructions of each phase.

--sections measures the longest section with interrupts off, under a raw spinlock, in instructions and in accesses to registers of the
card, while calls and events are at the limits of what a user can cause. It fails if a section exceeds SECTION_MAX or ACCESSES_MAX.

--profile relay measures on a card that switches by itself.
"""

import argparse
import bisect
import json
import os
import subprocess
import sys
from collections import Counter

from . import boot
from .common import BUILD, TOP, die, run, write_report

NAME = "module-count"
CARD = "slots=membench,0.speed=64,0.save_us=100,0.restore_us=100"
# As many slots as a card can have, and as many contexts as a card has by default.
CARD_OF_SECTIONS = "slots=" + "+".join(["membench"] * 8)
CONTEXTS = 4096
# Limits of a section.
SECTION_MAX, ACCESSES_MAX = 500_000, 600


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


def counts(path, text, size):
    """Return the instructions of the module since boot, by label and offset in the module's code."""
    found = {}
    for kind, label, address, instructions, *_ in map(str.split, path.read_text().splitlines()):
        offset = int(address, 16) - text
        if kind == "block" and 0 <= offset < size:
            found.setdefault(int(label), Counter())[offset] += int(instructions)
    return found


def sections(path, text):
    """Return the longest sections before each label: (instructions, accesses, offset of the section's begin)."""
    found = {}
    for kind, label, *words in map(str.split, path.read_text().splitlines()):
        if kind == "section" and int(words[0], 16):
            caller, instructions, accesses = int(words[0], 16), int(words[1]), int(words[2])
            found.setdefault(int(label), []).append((instructions, accesses, caller - text))
    return found


def functions(module):
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
    starts, names = functions(module)
    total = Counter()
    for offset, count in spent.items():
        total[starts[bisect.bisect_right(starts, offset) - 1]] += count
    for start, count in total.most_common(most):
        print(f"    {count / operations:>8.1f}  {names[start][:150]}")


def count_instructions(rest, most, profile):
    out = BUILD / "count.out"
    workload = boot_with_plugin(["count", *rest], out, "--card", f"profile={profile},{CARD}")
    by_label = counts(out, int(workload["text"], 16), workload["bytes"])
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
    """Return the name of the report of a measurement: fermata is the profile that has none in it."""
    return name if profile == "fermata" else f"{name}-{profile}"


def find_sections(rest, profile):
    out = BUILD / "sections.out"
    params = f"max_contexts={CONTEXTS} max_contexts_group={CONTEXTS}"
    command = ["sections", "--contexts", str(CONTEXTS), *rest]
    card = f"profile={profile},{CARD_OF_SECTIONS}"
    workload = boot_with_plugin(command, out, "--card", card, "--params", params, "--memory", "2G")
    by_label = sections(out, int(workload["text"], 16))
    starts, names = functions(BUILD / "module-7.2/fermata.ko")
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="print the N functions with most instructions")
    parser.add_argument("--profile", choices=["fermata", "relay"], default="fermata", help="of the card (default: fermata)")
    parser.add_argument("--sections", action="store_true", help="measure the longest sections with interrupts off")
    args, rest = parser.parse_known_args()
    if args.sections:
        find_sections(rest, args.profile)
    else:
        count_instructions(rest, args.functions, args.profile)


if __name__ == "__main__":
    main()
