# SPDX-License-Identifier: GPL-2.0
"""What tracepoints of fermata.ko cost while they are off: at each place where one is passed, the module has a no-op that the kernel
patches to a jump, of 2 or 5 bytes. Usage: python3 -m fermatavm.tracejump MODULE"""

import re
import subprocess
import sys
from collections import Counter

from .common import die

HEADER = re.compile(r"Relocation section '\.rela__jump_table'")
ENTRY = re.compile(r"^([0-9a-f]{16})\s+\S+\s+\S+\s+[0-9a-f]+ (\S+) \+ ([0-9a-f]+)$")
TEXT = re.compile(r"\] (\.\S+)\s+PROGBITS\s+[0-9a-f]+ ([0-9a-f]+)")
NOPS = (b"\x0f\x1f\x44\x00\x00", b"\x66\x90")
# Of a structure in the kernel's include/linux/jump_label.h: where to jump from, where to, and the key.
SIZE, KEY = 16, 8


def readelf(*args):
    return subprocess.run(["readelf", "-W", *args], capture_output=True, text=True, check=True).stdout


def places(module):
    """{name of a tracepoint: [(section, offset) of each place where it is passed]}."""
    code, found, inside = {}, {}, False
    for line in readelf("-r", module).splitlines():
        if line.startswith("Relocation section"):
            inside = bool(HEADER.match(line))
        elif inside and (entry := ENTRY.match(line)):
            at, symbol, addend = int(entry[1], 16), entry[2], int(entry[3], 16)
            if at % SIZE == 0:
                code[at] = symbol, addend
            elif at % SIZE == KEY and symbol.startswith("__tracepoint_fermata_"):
                found.setdefault(symbol.removeprefix("__tracepoint_"), []).append(code[at - KEY])
    return found


def main():
    module = sys.argv[1]
    data = open(module, "rb").read()
    sections = {name: int(offset, 16) for name, offset in TEXT.findall(readelf("-S", module))}
    defined = set(re.findall(r" __tracepoint_(fermata_\w+)$", readelf("-s", module), re.MULTILINE))
    found = places(module)
    if not defined or defined != set(found):
        die(f"{module}: tracepoints that are passed nowhere by a patched jump: {sorted(defined - set(found))}")
    lengths = Counter()
    for name, sites in sorted(found.items()):
        for section, offset in sites:
            begin = sections[section] + offset
            nop = next((nop for nop in NOPS if data.startswith(nop, begin)), None)
            if nop is None:
                die(f"{name}: no no-op at {section}+{offset:#x}, but {data[begin : begin + 5].hex(' ')}")
            lengths[len(nop)] += 1
    for length, count in sorted(lengths.items()):
        print(f"{count} places with a no-op of {length} bytes")
    print(f"{len(found)} tracepoints, each a patched jump where it is passed")


if __name__ == "__main__":
    main()
