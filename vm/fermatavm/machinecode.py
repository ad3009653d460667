# SPDX-License-Identifier: GPL-2.0
"""Check the machine code of fermata.ko. Usage: python3 -m fermatavm.machinecode frames|jumps FILE

frames: no function may use more than LIMIT bytes of the kernel's stack, which has 16 KiB for a whole call chain. Pushed registers and
the subtraction from the stack pointer are counted. (A compiler that probes the stack page by page subtracts a page, which exceeds LIMIT
as well.)

jumps: each place that passes a tracepoint must have a no-op of 2 or 5 bytes, which the kernel patches to a jump.
"""

import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from .common import die

LIMIT = 2048
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
PUSH = re.compile(r"\tpush\s+%r")
GROWS = re.compile(r"\t(?:sub\s+\$(0x[0-9a-f]+)|add\s+\$-(0x[0-9a-f]+)),%rsp")

INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(\S+)")
TARGET = re.compile(r"<([^+>]+)>$")
RELOCATION = re.compile(r"^\s+[0-9a-f]+: R_X86_64_(?:PLT32|PC32)\t(.+?)-0x4$")

HEADER = re.compile(r"Relocation section '\.rela__jump_table'")
ENTRY = re.compile(r"^([0-9a-f]{16})\s+\S+\s+\S+\s+[0-9a-f]+ (\S+) \+ ([0-9a-f]+)$")
TEXT = re.compile(r"\] (\.\S+)\s+PROGBITS\s+[0-9a-f]+ ([0-9a-f]+)")
NOPS = (b"\x0f\x1f\x44\x00\x00", b"\x66\x90")
# Of a structure in the kernel's include/linux/jump_label.h: its size, and the offset of the key.
SIZE, KEY = 16, 8


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def call_sites(module):
    """Return [(function, offset of the instruction after the call, callee)] of an object's code.

    Tail calls are left out: they do not return, and appear in no stack trace.
    """
    listing = output_of("objdump", "-dr", "--no-show-raw-insn", module)
    function, start, call, sites = None, 0, None, []
    for line in listing.splitlines():
        relocation = RELOCATION.match(line)
        if call:
            offset, target = call
            # A call within a section needs no relocation. A call with a relocation has the next instruction as its target.
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
    """Return {name: demangled name}."""
    names = sorted(set(names))
    if not names:
        return {}
    out = subprocess.run(["c++filt", "-i"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, out.splitlines(), strict=True))


def frames(listing):
    """Return the size of each function's frame in bytes, without the return address, from a listing by objdump -d."""
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
    """Return messages about frames above the limit."""
    large = sorted(((size, name) for name, size in sizes.items() if size > LIMIT), reverse=True)
    return [f"{name}: a frame of {size} bytes, {LIMIT} are the limit" for size, name in large]


def places(module):
    """Return {name of a tracepoint: [(section, offset) of each place that passes it]}."""
    code, found, inside = {}, {}, False
    for line in output_of("readelf", "-W", "-r", module).splitlines():
        if line.startswith("Relocation section"):
            inside = bool(HEADER.match(line))
        elif inside and (entry := ENTRY.match(line)):
            at, symbol, addend = int(entry[1], 16), entry[2], int(entry[3], 16)
            if at % SIZE == 0:
                code[at] = symbol, addend
            elif at % SIZE == KEY and symbol.startswith("__tracepoint_fermata_"):
                found.setdefault(symbol.removeprefix("__tracepoint_"), []).append(code[at - KEY])
    return found


def check_frames(file, most):
    sizes = frames(output_of("objdump", "-d", "--no-show-raw-insn", "--demangle", file))
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:most]:
        print(f"{size:6} {name}")
    words = too_large(sizes)
    for word in words:
        print(word)
    print(f"{len(sizes)} functions, the largest frame has {max(sizes.values(), default=0)} bytes")
    return not words and len(sizes) >= 2


def check_jumps(file):
    data = file.read_bytes()
    sections = {name: int(offset, 16) for name, offset in TEXT.findall(output_of("readelf", "-W", "-S", file))}
    defined = set(re.findall(r" __tracepoint_(fermata_\w+)$", output_of("readelf", "-W", "-s", file), re.MULTILINE))
    found = places(file)
    if not defined or defined != set(found):
        die(f"{file}: tracepoints without a patched jump at any place: {sorted(defined - set(found))}")
    lengths = Counter()
    for name, sites in sorted(found.items()):
        for section, offset in sites:
            begin = sections[section] + offset
            nop = next((nop for nop in NOPS if data.startswith(nop, begin)), None)
            if nop is None:
                die(f"{name}: has no no-op at {section}+{offset:#x}, but {data[begin : begin + 5].hex(' ')}")
            lengths[len(nop)] += 1
    for length, count in sorted(lengths.items()):
        print(f"{count} places with a no-op of {length} bytes")
    print(f"{len(found)} tracepoints, each a patched jump where it is passed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["frames", "jumps"])
    parser.add_argument("file", type=Path, help="an object file or module")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="frames: also show the N largest")
    args = parser.parse_args()
    if args.what == "jumps":
        check_jumps(args.file)
    else:
        sys.exit(not check_frames(args.file, args.top))


if __name__ == "__main__":
    main()
