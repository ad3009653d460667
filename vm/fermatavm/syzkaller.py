# SPDX-License-Identifier: GPL-2.0
"""Compare tools/fuzz/syzkaller, the description of /dev/fermata in syzkaller's language, with uapi/fermata.h.

The description is generated: structures, calls and constants from the header's code; directions and sets of flags from its comments;
values by the C compiler. --write generates it; commit the result. Without --write the files must be up to date, and the description is
parsed: it must have each call, structure and constant, with each field at the compiler's offset.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

from .common import TOP, die

HEADER = TOP / "uapi/fermata.h"
TEXT = TOP / "tools/fuzz/syzkaller/dev_fermata.txt"
CONST = TEXT.with_suffix(".txt.const")

BYTES = {"__u32": 4, "__s32": 4, "__aligned_u64": 8, "char": 1}
# Types that the header does not give, by structure and field, or by field alone.
FIELDS = {
    "size": "bytesize[parent, int32]",
    "reserved": "const[0, int32]",
    "context": "fermata_context",
    "fermata_arena_create.length": "int64[0x1000:0x100000, 0x1000]",
    "fermata_arena_create.fd": "fd_fermata",
    "fermata_arena_create.pid": "pid",
    "fermata_snapshot_create.pid": "pid",
    "fermata_config.pid": "pid",
    "fermata_snapshot_create.length": "int64[0x1000:0x100000, 0x1000]",
    "afu_id_lo": "fermata_afu_id_lo",
    "afu_id_hi": "fermata_afu_id_hi",
    "user_addr": "ptr64[inout, fermata_memory, opt]",
    "fermata_snapshot_read.buffer": "ptr64[out, array[int8]]",
    "fermata_snapshot_write.buffer": "ptr64[in, array[int8]]",
    "fermata_snapshot_read.length": "bytesize[buffer, int64]",
    "fermata_snapshot_write.length": "bytesize[buffer, int64]",
    "fermata_reg.offset": "int32[FERMATA_REG_FIRST:FERMATA_REG_LAST, 8]",
    "fermata_regs.count": "len[regs, int32]",
    "fermata_regs.regs": "ptr64[inout, array[fermata_reg, 0:FERMATA_MAX_REGS]]",
    "fermata_eventfd.fd": "fd_event",
    "fermata_histogram.buckets": "len[counts, int32]",
    "fermata_histogram.counts": "ptr64[out, array[int64, 0:FERMATA_HISTOGRAM_BUCKETS]]",
    "fermata_gang.flags": "flags[fermata_gang_flags, int32]",
    "fermata_param.flags": "flags[fermata_set_flags, int32]",
    "fermata_reserve.flags": "flags[fermata_set_flags, int32]",
    "fermata_queue_job.header": "flags[fermata_queue_job_flags, int32]",
    "fermata_queue_job.reserved": "array[const[0, int64], 2]",
    "fermata_queue_status.reserved": "const[0, int64]",
    "fermata_queue_status.header": "flags[fermata_queue_status_flags, int32]",
}
# Sets of flags that no comment names by their prefix.
SETS = {
    "fermata_gang_flags": ["FERMATA_GANG_JOIN", "FERMATA_GANG_LEAVE"],
    "fermata_set_flags": ["FERMATA_SET"],
    "fermata_queue_job_flags": ["FERMATA_QUEUE_VALID"],
    "fermata_queue_status_flags": ["FERMATA_QUEUE_STARTED", "FERMATA_QUEUE_COMPLETE"],
}
# Constants that have the prefix of a set, but do not belong to the set.
LIMITS = ("FERMATA_IOC_MAGIC", "FERMATA_HISTOGRAM_BUCKETS")
HEAD = """# SPDX-License-Identifier: GPL-2.0
# /dev/fermata in syzkaller's language, made of uapi/fermata.h: python3 -m fermatavm.syzkaller --write

include <fermata.h>

resource fd_fermata[fd]
resource fermata_context[int32]: 0
resource fermata_afu_id_lo[int64]: FERMATA_QUEUE_AFU_ID_LO
resource fermata_afu_id_hi[int64]: FERMATA_QUEUE_AFU_ID_HI

openat$fermata(fd const[AT_FDCWD], file ptr[in, string["/dev/fermata0"]], flags flags[open_flags], mode const[0]) fd_fermata
mmap$fermata(addr vma, len len[addr], prot flags[mmap_prot], flags flags[mmap_flags], fd fd_fermata, offset fileoff[0])
"""
# The program's own memory: pages, with the structures that the queue engine reads there.
MEMORY = """
fermata_memory {
	content	fermata_content
} [align[4096]]

fermata_content [
	jobs	array[fermata_queue_job, 2:16]
	status	array[fermata_queue_status, 2:16]
	control	fermata_queue_control
	bytes	array[int8, 0:4096]
] [varlen]
"""
RESOURCES = {"pid": 4, "fd_event": 4, "fd_fermata": 4, "fermata_context": 4, "fermata_afu_id_lo": 8, "fermata_afu_id_hi": 8}
# Values that the kernel defines.
KERNELS = {"AT_FDCWD": "0xffffffffffffff9c"}


class Header:
    """The code of the header, and the facts in its comments."""

    def __init__(self):
        text = HEADER.read_text()
        self.constants = dict(re.findall(r"^#define (FERMATA_\w+)[ \t]+(\S.*?)[ \t]*(?:/\*.*)?$", text, re.M))
        self.calls, self.structs, self.says = {}, {}, {}
        for comment, name, body in re.findall(r"/\*\*\n((?: \*[^/\n]?[^\n]*\n)*?) \*/\nstruct (\w+) \{\n(.*?)\n\};", text, re.S):
            self.structs[name] = re.findall(r"^\t(\w+) (\w+)(?:\[(\d+)\])?;$", body, re.M)
            if len(self.structs[name]) != body.count(";"):
                die(f"struct {name}: not every field is understood")
            head = re.match(r" \* struct.*?(?= \* @)", comment, re.S).group(0)
            self.calls.update((call, name) for call in re.findall(r"FERMATA_IOC_\w+", head))
            for field, says in re.findall(r"^ \* @(\w+):\s*((?:.*\n)(?: \*\t\t.*\n)*)", comment, re.M):
                self.says[name, field] = says

    def names(self, prefix):
        return [name for name in self.constants if name.startswith(prefix) and name not in LIMITS]


def direction(says):
    """Return the direction of a field by its comment: `in: ...`, `out: ...`, or the condition for each."""
    if re.match(r"in (or out|with FERMATA_\w+)\b", says):
        return "inout"
    ways = {way for way in ("in", "out") if re.search(rf"(^|; )(\w+ )*{way}\b( \(\w+\))?[:,;]|\b{way} \([A-Z]+\)", says)}
    return "inout" if len(ways) == 2 else "out" if ways == {"out"} else "in"


def field_type(header, sets, struct, kind, field, count):
    given = FIELDS.get(f"{struct}.{field}") or FIELDS.get(field if not count else "")
    if given:
        return given
    base = f"int{8 * BYTES[kind]}"
    says = header.says.get((struct, field), "")
    named = re.search(r"\b(FERMATA_\w+_)\*", says)
    if named:
        name = named.group(1).lower() + "flags"
        sets[name] = header.names(named.group(1))
        base = f"flags[{name}, {base}]"
    elif re.match(r"in: 0$|0$", says.strip()):
        base = f"const[0, {base}]"
    return f"array[{base}, {count}]" if count else base


def describe(header):
    sets = {}
    structs = []
    for struct, fields in header.structs.items():
        lines = [f"{struct} {{"]
        for kind, field, count in fields:
            out = direction(header.says.get((struct, field), "")) == "out"
            lines.append(f"\t{field}\t{field_type(header, sets, struct, kind, field, count)}" + ("\t(out)" if out else ""))
        structs.append("\n".join(lines) + "\n}\n")
    calls = []
    for call in header.names("FERMATA_IOC_"):
        struct = header.calls.get(call) or die(f"{call}: no structure's comment names it")
        way = "inout" if any(direction(header.says.get((struct, field), "")) != "in" for _, field, _ in header.structs[struct]) else "in"
        calls.append(f"ioctl${call}(fd fd_fermata, cmd const[{call}], arg ptr[{way}, {struct}])")
    sets |= SETS
    flags = [f"{name} = {', '.join(values)}" for name, values in sorted(sets.items())]
    used = HEAD + "\n".join(calls + structs + flags)
    rest = [name for name, value in header.constants.items() if not value.startswith('"') and not re.search(rf"\b{name}\b", used)]
    return "\n".join([HEAD, *calls, MEMORY, *structs, *flags, "", *(f"_ = {name}" for name in rest)]) + "\n"


def compiled(header):
    """Return the values of constants, the sizes of structures and the offsets of fields."""
    numbers = [name for name, value in header.constants.items() if not value.startswith('"')]
    lines = [f'printf("{name} %llu\\n", (unsigned long long)({name}));' for name in numbers]
    for struct, fields in header.structs.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof(struct {struct}));')
        lines += [f'printf("{struct}.{field} %zu\\n", offsetof(struct {struct}, {field}));' for _, field, _ in fields]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        text = f'#include <stddef.h>\n#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{ {" ".join(lines)} }}\n'
        subprocess.run(["gcc", "-x", "c", "-o", program, "-"], input=text, text=True, check=True)
        out = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    values = {name: int(value) for name, value in map(str.split, out.splitlines())}
    return {name: values[name] for name in numbers}, {name: value for name, value in values.items() if name not in numbers}


def constants_file(numbers):
    lines = ["# SPDX-License-Identifier: GPL-2.0", "# Made by python3 -m fermatavm.syzkaller --write.", "arches = amd64, arm64"]
    values = {**KERNELS, **{name: str(value) for name, value in numbers.items()}}
    return "\n".join(lines + [f"{name} = {values[name]}" for name in sorted(values)]) + "\n"


def size_of(kind):
    """Return the size and the alignment of a field in bytes."""
    if array := re.fullmatch(r"array\[(.*), (\d+)\]", kind):
        size, align = size_of(array.group(1))
        return size * int(array.group(2)), align
    if text := re.fullmatch(r"string\[\w+, (\d+)\]", kind):
        return int(text.group(1)), 1
    if kind.startswith("ptr64["):
        return 8, 8
    if kind in RESOURCES:
        return RESOURCES[kind], RESOURCES[kind]
    size = int(re.search(r"\bint(\d+)(?:\[.*\])?\]?$", kind).group(1)) // 8
    return size, size


def read_back(header, text, numbers, places):
    """Return messages about errors in the description alone, without the header's comments."""
    wrong = []
    for struct, fields in header.structs.items():
        body = re.search(rf"^{struct} \{{\n(.*?)^\}}$", text, re.M | re.S)
        described = re.findall(r"^\t(\w+)\t([^\t\n]+)", body.group(1), re.M) if body else []
        if [name for name, _ in described] != [name for _, name, _ in fields]:
            wrong.append(f"struct {struct}: other fields than in the header")
        at, most = 0, 1
        for field, kind in described:
            size, align = size_of(kind)
            at += -at % align
            if places.get(f"{struct}.{field}") != at:
                wrong.append(f"{struct}.{field} is described at {at}, and is at {places.get(f'{struct}.{field}')}")
            at, most = at + size, max(most, align)
        if at + -at % most != places[struct]:
            wrong.append(f"struct {struct}: {at} bytes are described, it has {places[struct]}")
    for name in numbers:
        if not re.search(rf"\b{name}\b", text):
            wrong.append(f"{name} is not described")
        if name.startswith("FERMATA_IOC_") and name not in LIMITS and not re.search(rf"^ioctl\${name}\(.*const\[{name}\]", text, re.M):
            wrong.append(f"{name} is no call")
    sets = {name: values.split(", ") for name, values in re.findall(r"^(\w+) = (.*)$", text, re.M)}
    for name in set(re.findall(r"flags\[(fermata_\w+),", text)) - sets.keys():
        wrong.append(f"the flags {name} are not described")
    return wrong


def main():
    parser = argparse.ArgumentParser(prog="python3 -m fermatavm.syzkaller", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make the description anew")
    write = parser.parse_args().write
    header = Header()
    numbers, places = compiled(header)
    wanted = {TEXT: describe(header), CONST: constants_file(numbers)}
    wrong = read_back(header, wanted[TEXT], numbers, places)
    for file, text in wanted.items():
        if write:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            wrong.append(f"{file.relative_to(TOP)} is not what uapi/fermata.h says: python3 -m fermatavm.syzkaller --write")
    if wrong:
        die("\nfermata: ".join(wrong))


if __name__ == "__main__":
    main()
