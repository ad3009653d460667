# SPDX-License-Identifier: GPL-2.0
"""Add up what the boots of `make check`, `make check-all` and `make check-debug` did to the module, and the failures.

The sums are printed as a table and go to build/reports/reliability.json. The program fails if a boot on the named kernels, in the run of
vm/check to which this step belongs, had a complaint of the kernel, a leak, a lost job or a violation of the card's protocol. Boots with
planted mistakes (vm/fermatavm/planted.py) do not count.

Programs write counts to a file of their machine (fm_tally()); vm/boot adds the time that the machine was up, the complaints of the kernel
(`TROUBLE` in trouble.py), and whether the card's checker counted violations. In the table,
    kills               SIGKILL of processes with contexts, in each state of a context
    unbinds, resets, removals, suspends
                        through sysfs, most of them while jobs run
    errors of the link  AER: correctable, not fatal, fatal
    faults of the card  what the emulated card was told to do wrong; on the debug kernel also each end of a fault
    injected faults     allocations and copies that were made to fail (selftests/failnth)
    fuzzed calls        calls of random programs (tools/fuzz)
    leaks               what is left after the module was unloaded, or a debugging facility that has disabled itself (selftests/leftovers)
    lost jobs           jobs that did not end within 40 s, or had a wrong result.
"""

import argparse
import json
import os
from collections import Counter
from pathlib import Path

from .common import BUILD, die, write_report

KINDS = {"stock": "stock kernels", "debug": "debug kernel"}
# What must have been done, since otherwise the rest proves nothing; and what must not have happened.
ACTS = ["jobs with the right result", "kills", "loads of the module", "resets", "suspends", "unbinds"]
NONE = ["splats", "leaks", "lost jobs", "violations"]


def results():
    """Return the results of the boots of each last run, with the folder of the run."""
    paths = sorted(BUILD.glob("check*/results/*.json"))
    return [(path.parent, json.loads(path.read_text())) for path in paths]


def none_last(what):
    return what in NONE, what


def add_up(boots):
    """Return the sums over boots, and the smallest and largest value of each figure."""
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
        "counted": {what: tally[what] for what in sorted(tally, key=none_last)},
        "figures": {what: [min(values), max(values)] for what, values in sorted(figures.items())},
    }


def kind_of(boot):
    return "debug" if boot["kernel"].endswith("-debug") else "stock"


def table(report):
    """Return a table in Markdown, with a column for each kind of kernel."""
    columns = [report[kind] for kind in KINDS]
    rows = [["", *KINDS.values()], ["---", "--:", "--:"]]
    for what in ("boots", "hours"):
        rows.append([what, *(f"{column[what]:,}" for column in columns)])
    for what in sorted({what for column in columns for what in column["counted"]}, key=none_last):
        rows.append([what, *(f"{column['counted'].get(what, 0):,}" for column in columns)])
    for what in sorted({what for column in columns for what in column["figures"]}):
        values = (column["figures"].get(what) for column in columns)
        rows.append([what, *("" if pair is None else f"{pair[0]:,} to {pair[1]:,}" for pair in values)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="+", choices=KINDS, help="kernels that are judged; the report has all")
    args = parser.parse_args()
    boots = results() or die("no boot has left its result: run make check, or make check-debug, first")
    report = {kind: add_up([boot for _, boot in boots if kind_of(boot) == kind]) for kind in KINDS}
    write_report("reliability", report)
    print(table(report))
    folder = Path(os.environ.get("FERMATA_RESULTS", BUILD))
    for kind in args.kind:
        counted = add_up([boot for place, boot in boots if place.is_relative_to(folder) and kind_of(boot) == kind])["counted"]
        wrong = [f"{counted[what]} {what}" for what in NONE if counted[what]] + [f"no {what}" for what in ACTS if not counted.get(what)]
        if wrong:
            die(f"{KINDS[kind]}: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
