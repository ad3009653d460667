# SPDX-License-Identifier: GPL-2.0
"""Add up what the boots of `make check` and `make check-debug` did to the module, and what came of it.

The sums go to build/reports/reliability.json, and as a table to the output. Fails when something came of it that must not: the
kernel complained, memory was left behind, a job was lost, the card counted a violation. Boots that were to be seen complaining
(vm/fermatavm/planted.py) are none of these.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from .common import BUILD, die

# What must be none, and where it is told: by a boot itself, or by what its programs counted.
NONE = ["splats", "leaks", "lost jobs", "violations"]


def results():
    """What the boots of the last run of each left."""
    return [json.loads(path.read_text()) for path in sorted(BUILD.glob("check*/results/*.json"))]


def add_up(boots):
    """The sums over boots; figures as the least and the most of them."""
    tally, figures = Counter(dict.fromkeys(NONE, 0)), {}
    for boot in boots:
        tally.update(boot["tally"])
        tally["splats"] += boot["splats"]
        tally["violations"] += boot["failed_cards"]
        for what, value in boot["figures"].items():
            figures.setdefault(what, []).append(value)
    return {
        "boots": len(boots),
        "hours": round(sum(boot["seconds"] for boot in boots) / 3600, 2),
        "counted": {what: tally[what] for what in sorted(tally, key=lambda what: (what in NONE, what))},
        "figures": {what: [min(values), max(values)] for what, values in sorted(figures.items())},
    }


def of_kind(boots, debug):
    return [boot for boot in boots if boot["kernel"].endswith("-debug") == debug]


def table(report):
    """A table in Markdown: stock kernels beside the debug kernel."""
    kinds = ["stock", "debug"]
    rows = [["", "stock kernels", "debug kernel"]]
    for what in ("boots", "hours"):
        rows.append([what, *(f"{report[kind][what]:,}" for kind in kinds)])
    for what in sorted({what for kind in kinds for what in report[kind]["counted"]}, key=lambda what: (what in NONE, what)):
        rows.append([what, *(f"{report[kind]['counted'].get(what, 0):,}" for kind in kinds)])
    for what in sorted({what for kind in kinds for what in report[kind]["figures"]}):
        values = (report[kind]["figures"].get(what) for kind in kinds)
        rows.append([what, *("" if pair is None else f"{pair[0]:,} to {pair[1]:,}" for pair in values)])
    rows.insert(1, ["---", "--:", "--:"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main():
    boots = results() or die("no boot has left its result: run make check, or make check-debug, first")
    report = {"stock": add_up(of_kind(boots, False)), "debug": add_up(of_kind(boots, True))}
    path = Path(BUILD / "reports/reliability.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))
    found = [f"{report[kind]['counted'][what]} {what}" for kind in report for what in NONE if report[kind]["counted"][what]]
    sys.exit(f"there must be none of: {', '.join(found)}" if found else 0)


if __name__ == "__main__":
    main()
