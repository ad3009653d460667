# SPDX-License-Identifier: GPL-2.0
"""See that no function of fermata.ko takes more of the kernel's stack (16 KiB, for whole call chains) than the limit.

Read from the machine code: what a function pushes, and what it subtracts from the stack pointer at once. (Where a compiler goes
down page by page, to touch each, that is a page: above the limit as well.) A name in ALLOWED may take more, and must need it.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

LIMIT = 2048
# A part of the (demangled) name, and how much it may take; with why that is no danger.
ALLOWED = {
    # The state of a card comes by way of the stack. It calls nothing but pure code; probe, its caller, is the driver's first.
    "card::config::fill": 4096,
}
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
PUSH = re.compile(r"\tpush\s+%r")
GROWS = re.compile(r"\t(?:sub\s+\$(0x[0-9a-f]+)|add\s+\$-(0x[0-9a-f]+)),%rsp")


def frames(listing):
    """Bytes of the frame of each function of a listing by objdump -d, its return address left out."""
    sizes, name, pushed, saved = {}, None, 0, 6 * 8
    for line in listing.splitlines():
        if found := FUNCTION.match(line):
            name, pushed = found.group(1), 0
            sizes.setdefault(name, 0)
        elif name and PUSH.search(line):
            pushed += 8
            sizes[name] = max(sizes[name], min(pushed, saved))
        elif name and (found := GROWS.search(line)):
            grown = int(next(filter(None, found.groups())), 16)
            sizes[name] = max(sizes[name], min(pushed, saved) + grown)
    return sizes


def too_large(sizes):
    """What to say about frames above the limit, and about exceptions that no frame needs."""
    needed, words = set(), []
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size <= LIMIT:
            continue
        exception = next((part for part in ALLOWED if part in name), None)
        needed.add(exception)
        if exception is None or size > ALLOWED[exception]:
            words.append(f"{name}: a frame of {size} bytes, {LIMIT} are the limit")
    words += [f"{part}: listed as an exception, but no frame needs it" for part in ALLOWED if part not in needed]
    return words


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path, help="an object file or module")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="also show the N largest")
    args = parser.parse_args()
    cmd = ["objdump", "-d", "--no-show-raw-insn", "--demangle", str(args.module)]
    sizes = frames(subprocess.run(cmd, capture_output=True, text=True, check=True).stdout)
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[: args.top]:
        print(f"{size:6} {name}")
    words = too_large(sizes)
    for word in words:
        print(word)
    print(f"{len(sizes)} functions, the largest frame has {max(sizes.values(), default=0)} bytes")
    sys.exit(1 if words or len(sizes) < 2 else 0)


if __name__ == "__main__":
    main()
