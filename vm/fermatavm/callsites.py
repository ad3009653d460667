# SPDX-License-Identifier: GPL-2.0
"""Calls that fermata.ko makes, by function and return address: how a place of it is named in stack traces and by KCOV."""

import re
import subprocess

FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(\S+)")
TARGET = re.compile(r"<([^+>]+)>$")
RELOCATION = re.compile(r"^\s+[0-9a-f]+: R_X86_64_(?:PLT32|PC32)\t(.+?)-0x4$")


def of(module):
    """[(function, offset of what comes after the call, what is called)] of an object's code.

    A jump to another function is no such call: nothing comes back, and it is not to be seen in a stack trace.
    """
    listing = subprocess.run(["objdump", "-dr", "--no-show-raw-insn", module], capture_output=True, text=True, check=True).stdout
    function, start, call, sites = None, 0, None, []
    for line in listing.splitlines():
        relocation = RELOCATION.match(line)
        if call:
            offset, target = call
            # Within a section a call needs no relocation; before one it seems to go to what comes next.
            callee = relocation.group(1) if relocation else target
            if callee:
                sites.append((function, offset, callee))
            call = None
        if found := FUNCTION.match(line):
            function, start = found.group(1), int(line.split()[0], 16)
        elif (found := INSTRUCTION.match(line)) and found.group(2) == "call":
            target = TARGET.search(line)
            call = int(found.group(1), 16) + 5 - start, target and target.group(1)
    return sites


def readable(names):
    """{name: demangled}."""
    names = sorted(set(names))
    if not names:
        return {}
    out = subprocess.run(["c++filt", "-i"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, out.splitlines(), strict=True))
