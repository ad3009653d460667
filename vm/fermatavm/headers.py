# SPDX-License-Identifier: GPL-2.0
"""Check the headers of include/ against the Rust and C sources of the module.

python3 -m fermatavm.headers exits 1 with messages if
    a function that a header declares is not defined in rust/*.c, or is used by no Rust file,
    a Rust file declares a function fermata_* that no header declares, or
    a name or number that a tracepoint prints (include/trace/events/fermata.h) is not that of rust/trace.rs.
"""

import re
import sys

from .common import TOP

EVENTS = TOP / "include/trace/events/fermata.h"
NUMBERS = TOP / "rust/trace.rs"
# The enum or the function of rust/trace.rs that numbers a field, by the names of the event and the field.
NUMBERED = {
    ("fermata_outcome", "result"): "failure",
    ("fermata_arrival", "urgency"): "urgency",
    ("fermata_arrival", "cause"): "Arrival",
    ("fermata_request", "request"): "Request",
    ("fermata_refused", "request"): "Request",
    ("fermata_refused", "reason"): "refusal",
    ("fermata_pause", "why"): "cause",
    ("fermata_stop", "why"): "end",
    ("fermata_job_end", "result"): "failure",
    ("fermata_queue", "event"): "QueueEvent",
    ("fermata_card", "event"): "CardEvent",
}
# Fields whose numbers are not from rust/trace.rs: a bool, and the card's register.
OTHERS = {("fermata_start", "why"), ("fermata_status", "phase"), ("fermata_status", "flags")}
# Names of numbers that are no variants of an enum.
MORE = {"failure": {"done": 0}, "urgency": {"best-effort": 0, "latency-critical": 1}}
# Events with only some of the requests.
PARTS = {("fermata_request", "request")}


def kebab(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def numbers_of_rust():
    """Return {enum or function: {name: number}} of rust/trace.rs."""
    text = NUMBERS.read_text()
    found = {}
    for name, body in re.findall(r"#\[repr\(u32\)\]\npub\(crate\) enum (\w+) \{\n(.*?)\n\}", text, re.DOTALL):
        found[name] = {kebab(variant): number for number, variant in enumerate(re.findall(r"(?m)^    (\w+),$", body))}
    for name, body in re.findall(r"pub\(crate\) fn (\w+)\([^)]*\) -> [^{]*\{\n(.*?)\n\}", text, re.DOTALL):
        arms = re.findall(r"\w+::(\w+)[^=\n]*=> (?:Some)?\(?(\d+)", body)
        numbers = {kebab(variant): int(number) for variant, number in arms} | MORE.get(name, {})
        if numbers:
            found[name] = numbers
    return found


def numbers_of_events():
    """Yield the names of each event and field that prints names, with {name: number}."""
    text = EVENTS.read_text().replace("\\\n", "\n")
    macros = dict(re.findall(r"#define (fermata_show_\w+)\(value\)\s+(__print_symbolic\(.*?\}\))", text, re.DOTALL))
    for event, body in re.findall(r"TRACE_EVENT\((\w+),(.*?)\n\);", text, re.DOTALL):
        for macro, list_ in macros.items():
            body = re.sub(rf"{macro}\(([^)]*)\)", lambda match, list_=list_: list_.replace("value", match.group(1), 1), body)
        for field, list_ in re.findall(r"__print_(?:symbolic|flags)\(\s*__entry->(\w+),(.*?\})\s*\)", body, re.DOTALL):
            yield event, field, {name: int(number, 0) for number, name in re.findall(r'\{ (\w+), "([^"]+)" \}', list_)}


def wrong_numbers():
    rust = numbers_of_rust()
    seen = set()
    for event, field, printed in numbers_of_events():
        key = (event, field)
        seen.add(key)
        if key in OTHERS:
            continue
        wanted = rust.get(NUMBERED.get(key), {})
        expected = {name: wanted[name] for name in printed if name in wanted} if key in PARTS else wanted
        if not wanted or printed != expected:
            yield f"{event}, {field}: prints {printed}, and {NUMBERED.get(key)} of rust/trace.rs has {wanted}"
    for event, field in (set(NUMBERED) | OTHERS) - seen:
        yield f"{event}: {field} is not printed by name"


def wrong_functions():
    headers = {file: re.findall(r"\b(fermata_\w+)\([^*]", file.read_text()) for file in sorted((TOP / "include").glob("*.h"))}
    c = "\n".join(file.read_text() for file in (TOP / "rust").glob("*.c"))
    rust = {file: file.read_text() for file in (TOP / "rust").rglob("*.rs")}
    words = set(re.findall(r"\w+", "\n".join(rust.values())))
    for file, functions in headers.items():
        for function in functions:
            if not re.search(rf"(?m)^\w[^;\n(]*\b{function}\(", c):
                yield f"{file.name}: {function}() is not defined in rust/*.c"
            if function not in words:
                yield f"{file.name}: {function}() is used by no Rust file"
    declared = {function for functions in headers.values() for function in functions}
    for file, text in rust.items():
        # A declaration has no body.
        for function in re.findall(r"\bfn (fermata_\w+)\([^{;]*;", text):
            if function not in declared:
                yield f"{file.relative_to(TOP)}: no header declares {function}()"


def main():
    wrong = [*wrong_functions(), *wrong_numbers()]
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(1)
    print("what the headers declare is defined and used; tracepoints print the numbers of rust/trace.rs")


if __name__ == "__main__":
    main()
