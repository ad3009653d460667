# SPDX-License-Identifier: GPL-2.0
"""Run the fuzzer (tools/fuzz) on the debug kernel, beginning with tools/fuzz/corpus.txt, and print the reached part of the module.

The status is that of vm/boot: nonzero if the kernel or the card complained. The report is build/reports/fuzz-PROFILE.json. With --keep,
programs that reached a new place are added to the corpus.
"""

import argparse
import json
import re
import sys
from collections import Counter

from . import boot, machinecode, module
from .common import BUILD, TOP, say, write_report
from .kernel import DEBUG, kernel_named

CORPUS = TOP / "tools/fuzz/corpus.txt"
PLACE = "__sanitizer_cov_trace_pc"
# Parts of the module that system calls reach, as prefixes of a function's demangled name.
PARTS = ["ioctl", "argument", "file", "context", "notifier", "opener", "image", "dma_memory", "card", "gate", "sched"]


def part_of(name):
    """Return the part of the module that a function (demangled by c++filt) belongs to, or None if system calls do not reach it."""
    found = re.search(r"fermata_main(?:\[\w+\])?::(\w+)", name)
    return found.group(1) if found and found.group(1) in PARTS else None


def coverage(ko, reached):
    """Return ({part: number of reached places}, {part: number of places})."""
    sites = [(function, offset) for function, offset, callee in machinecode.call_sites(ko) if callee == PLACE]
    names = machinecode.readable(function for function, _ in sites)
    there, of = Counter(), Counter()
    for function, offset in sites:
        part = part_of(names[function])
        there[part] += 1
        of[part] += (function, offset) in reached
    there.pop(None, None)
    return of, there


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", type=int, default=60, metavar="SECONDS", help="time to run after the corpus (default 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--iommu", default="intel", choices=boot.IOMMUS)
    parser.add_argument("--profile", default="irq", choices=["base", "irq", "relay"], help="profile of the card (default irq)")
    parser.add_argument("--least", type=int, default=0, metavar="PERCENT", help="fail if less of the calls' code is reached")
    parser.add_argument("--keep", action="store_true", help="add new programs to the corpus")
    args = parser.parse_args()
    name = f"fuzz-{args.profile}"
    ko = module.build(kernel_named(DEBUG).ensure())
    options = ["--kernel", DEBUG, "--card", f"profile={args.profile},slots=linkedlist+membench+sha256+blockmix,imports=1"]
    options += ["--iommu", args.iommu, "--params", "foreign_memory=1", "--name", name]
    options += ["--timeout", str(args.time + 600), "--add", f"{CORPUS}:corpus.txt"]
    fuzz = ["/selftests/leftovers", "fermata-fuzz", "--time", str(args.time), "--seed", str(args.seed)]
    status = boot.run(boot.parse([*options, "--", *fuzz]))
    files = BUILD / f"vm/{name}/files"
    if not (files / "fuzz.json").exists():
        say("the fuzzer did not end")
        sys.exit(status or 1)
    reached = {(name, int(offset, 16)) for name, offset in map(str.split, (files / "reached").read_text().splitlines())}
    of, there = coverage(ko, reached)
    for part in PARTS:
        if there[part]:
            print(f"# {part}: {of[part]} of {there[part]} places ({100 * of[part] // there[part]} %)")
    report = json.loads((files / "fuzz.json").read_text()) | {"places": {part: [of[part], there[part]] for part in there}}
    write_report(name, report)
    if args.keep and (files / "found").exists():
        with CORPUS.open("a") as corpus:
            corpus.write("\n" + (files / "found").read_text())
    percent = 100 * of["ioctl"] // max(1, there["ioctl"])
    if percent < args.least:
        say(f"{percent} % of the calls' own code was reached, {args.least} % are expected")
        sys.exit(status or 1)
    sys.exit(status)


if __name__ == "__main__":
    main()
