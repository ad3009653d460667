# SPDX-License-Identifier: GPL-2.0
"""Count the instructions that fermata.ko itself runs, per switch and per call, by a plugin of QEMU's TCG (tools/bench/plugin).

Everything of the module is counted, interrupt handler, timer and calls; what it calls in the kernel is not.
"""

import json
import os
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


def main():
    os.environ["FERMATA_ACCEL"] = "tcg"
    out = BUILD / "count.out"
    plugin = f"file={build_plugin()},out={out}"
    options = ["--name", NAME, "--iommu", "intel", "--card", CARD, "--qemu=-plugin", f"--qemu={plugin}", "--timeout", "300"]
    status = boot.run(boot.parse([*options, "--", "fermata-bench", "count", *sys.argv[1:]]))
    if status:
        sys.exit(status)
    told = json.loads((BUILD / f"vm/{NAME}/files/count.json").read_text())
    by_label = counts(out, int(told["text"], 16), told["bytes"])
    report = {}
    for number, phase in enumerate(told["phases"]):
        spent = by_label.get(2 * number + 1, Counter()) - by_label.get(2 * number, Counter())
        report[phase["name"]] = round(spent.total() / phase["operations"])
        print(f"{phase['name']:<48} {report[phase['name']]:>7}")
    if report["nothing"] or not all(count for name, count in report.items() if name != "nothing"):
        die("the plugin did not count what it should")
    file = BUILD / "reports/module-instructions.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    say("report: build/reports/module-instructions.json")


if __name__ == "__main__":
    main()
