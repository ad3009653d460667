# SPDX-License-Identifier: GPL-2.0
"""Count the instructions that fermata.ko itself runs, per switch and per call, by a plugin of QEMU's TCG (tools/bench/plugin).

Everything of the module is counted, interrupt handler, timer and calls; what it calls in the kernel is not. --functions N also tells
where they are spent, the N functions with most of them for each phase.
"""

import argparse
import bisect
import json
import os
import subprocess
import sys
from collections import Counter

from . import boot
from .common import BUILD, TOP, die, run, say

NAME = "module-count"
CARD = "profile=fermata,slots=membench,0.speed=64,0.save_us=100,0.restore_us=100"


def build_plugin():
    plugin = BUILD / "count.so"
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    run(["gcc", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", *warnings, TOP / "tools/bench/plugin/count.c", "-o", plugin])
    return plugin


def counts(path, text, size):
    """Instructions of the module since the machine began, by label and offset in its code."""
    found = {}
    for line in path.read_text().splitlines():
        label, address, instructions = line.split()
        offset = int(address, 16) - text
        if 0 <= offset < size:
            found.setdefault(int(label), Counter())[offset] += int(instructions)
    return found


def functions(module):
    """Of a built module: where the functions of .text begin, and their names, by address."""
    table = subprocess.run(["objdump", "-t", "-C", module], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in table.splitlines():
        symbol, _, rest = line.partition("\t")
        if symbol.split()[-2:] == ["F", ".text"]:
            # Its size, then its name, which may have blanks in it.
            found[int(symbol.split()[0], 16)] = rest.split(maxsplit=1)[-1].removeprefix(".hidden ")
    return sorted(found), found


def print_functions(spent, operations, module, most):
    starts, names = functions(module)
    total = Counter()
    for offset, count in spent.items():
        total[starts[bisect.bisect_right(starts, offset) - 1]] += count
    for start, count in total.most_common(most):
        print(f"    {count / operations:>8.1f}  {names[start][:150]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="print the N functions that run most instructions")
    args, rest = parser.parse_known_args()
    os.environ["FERMATA_ACCEL"] = "tcg"
    out = BUILD / "count.out"
    plugin = f"file={build_plugin()},out={out}"
    options = ["--release", "--name", NAME, "--iommu", "intel", "--card", CARD, "--qemu=-plugin", f"--qemu={plugin}", "--timeout", "900"]
    status = boot.run(boot.parse([*options, "--", "fermata-bench", "count", *rest]))
    if status:
        sys.exit(status)
    told = json.loads((BUILD / f"vm/{NAME}/files/count.json").read_text())
    by_label = counts(out, int(told["text"], 16), told["bytes"])
    report = {}
    for number, phase in enumerate(told["phases"]):
        spent = by_label.get(2 * number + 1, Counter()) - by_label.get(2 * number, Counter())
        report[phase["name"]] = round(spent.total() / phase["operations"])
        print(f"{phase['name']:<48} {report[phase['name']]:>7}")
        if args.functions:
            print_functions(spent, phase["operations"], BUILD / "module-7.2/fermata.ko", args.functions)
    if report["nothing"] or not all(count for name, count in report.items() if name != "nothing"):
        die("the plugin did not count what it should")
    file = BUILD / "reports/module-instructions.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    say("report: build/reports/module-instructions.json")


if __name__ == "__main__":
    main()
