# SPDX-License-Identifier: GPL-2.0
"""Check the structure of rust/: uses between files, sizes of functions, names.

python3 -m fermatavm.structure          exits 1 with messages if
    files of rust/sched use each other in a cycle, by `use` or by calls of methods,
    a file in rust/*.rs uses rust/card and rust/card uses the file,
    docs/architecture.md does not name a file of the module,
    a function in rust/ has more than 60 lines or 6 parameters,
    code of the module has a retired identifier instead of a standard term (docs/glossary.md), or
    cargo does not run a test because Cargo.toml has `test = false` or `doctest = false`.
python3 -m fermatavm.structure --edges  also prints the uses within rust/sched.

A method belongs to the file that defines the method. A call by `self` calls a method of the type of the enclosing `impl`. Any other
call counts only if one file defines all methods of this name."""

import collections
import pathlib
import re
import sys
import tomllib

LINES_MAX = 60
PARAMETERS_MAX = 6
TOP = pathlib.Path(__file__).resolve().parents[2]
RUST = TOP / "rust"
MANIFESTS = ("card/Cargo.toml", "rust/*/Cargo.toml", "tools/*/Cargo.toml")

# Identifiers that standard terms have replaced in files of the module.
RETIRED = {
    "Chain", "Doubtful", "Entry", "Gate", "Inside", "Kept", "Machine", "Parting", "Purse", "Replays", "Residue", "Stops", "Stopwatch",
    "PARKED", "Tenant", "Told", "Verdict", "are_fellows", "aside", "begin_anew", "believe", "carry_out", "deaf", "doubt", "enter_lane",
    "first_beside", "guard_ms", "guard_ns", "is_heard", "keeper", "lanes", "lapsed", "leave_lane", "let_go", "line_up", "lose",
    "may_have_any_number", "or_again", "parked", "press", "press_all", "save_none", "stands_for", "starved", "step_out", "useless",
    "virtual_ns",
}
# Folders whose files docs/architecture.md names one by one.
NAMED = (".", "card", "context", "dump", "sched")
MODULE = (".", "card", "context", "dump", "ioctl", "measure", "sched", "sysfs")

STRING = re.compile(r'//[^\n]*|/\*.*?\*/|b?r?"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\])\'', re.S)
IMPL = re.compile(r"^[ ]*(?:unsafe )?(?:impl|trait)\b(?:<[^{]*?>)? ([^{;]*? for )?(?:\w+::)*(\w+)[^{;]*\{", re.M)
# Methods of the standard library whose names methods of the module share.
STANDARD = {"fill", "get", "get_mut", "is_empty"}
FUNCTION = re.compile(r"^[ ]*(?:(?:pub(?:\([^)]*\))?|const|unsafe|async|extern \"C\"|extern) )*fn (\w+)", re.M)
# A test that cargo runs, and an example in the documentation of a library.
TEST, EXAMPLE = re.compile(r"#\[test\]|\bproptest!"), re.compile(r"^\s*//[/!] *```(?!text)", re.M)


def blank(match):
    """Return comments and strings as blanks of the same length."""
    return re.sub(r"[^\n]", " ", match.group(0))


def closing(text, at, opening, end):
    """Return the position after the bracket that closes the bracket at `at`."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == opening) - (text[place] == end)
        if depth == 0:
            return place + 1
    return len(text)


class Source:
    """A file, its functions, and the types whose methods the file implements."""

    def __init__(self, path):
        self.path = path
        self.name = str(path.relative_to(RUST))
        self.text = STRING.sub(blank, path.read_text(encoding="utf-8"))
        self.impls = [self.impl_at(match) for match in IMPL.finditer(self.text)]
        self.functions = list(self.find_functions())

    def impl_at(self, match):
        """Return begin, end and owner of an `impl`, as `type_at` returns the owner."""
        return match.start(), closing(self.text, match.end() - 1, "{", "}"), (match.group(2), bool(match.group(1)))

    def type_at(self, place):
        """Return the type whose `impl` encloses a position, and whether the `impl` is of a trait."""
        return next((owner for begin, end, owner in reversed(self.impls) if begin <= place < end), (None, False))

    def find_functions(self):
        """Yield name, type, position, lines and number of parameters of each function."""
        for match in FUNCTION.finditer(self.text):
            begin = self.text.find("(", match.end())
            if begin < 0:
                continue
            if self.text[match.end()] == "<":
                has_bound = "->" in self.text[match.end() : begin]
                begin = self.text.index("(", begin if has_bound else closing(self.text, match.end(), "<", ">"))
            end = closing(self.text, begin, "(", ")")
            body = re.compile(r"[{;]").search(self.text, end)
            if not body:
                continue
            last = closing(self.text, body.start(), "{", "}") if body.group(0) == "{" else body.end()
            yield match.group(1), self.type_at(match.start()), match.start(), self.text.count("\n", match.start(), last) + 1, \
                parameters(self.text[begin + 1:end - 1])


def parameters(text):
    """Return the number of parameters in a list, without `self`."""
    depth, count, part = 0, 0, ""
    for char in text.replace("->", "  ") + ",":
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            count += bool(part.strip()) and not re.fullmatch(r"\s*(&('\w+ )?)?(mut )?self(: .*)?\s*", part, re.S)
            part = ""
        else:
            part += char
    return count


def modules(text):
    """Return the modules of the crate that a file names."""
    found = set(re.findall(r"\bcrate::(\w+)", text))
    for match in re.finditer(r"\bcrate::\{", text):
        depth, part = 0, ""
        for char in text[match.end():closing(text, match.end() - 1, "{", "}")]:
            if depth == 0 and char in ",}":
                found.add(part.strip().split("::")[0])
                part = ""
                continue
            depth += (char == "{") - (char == "}")
            part += char
    return found


def sources(folder, pattern="*.rs"):
    return [Source(path) for path in sorted((RUST / folder).glob(pattern))]


def uses(files):
    """Return the uses between files of a folder, and the names that cause each use."""
    stems = {source.path.stem: source.name for source in files}
    homes = collections.defaultdict(set)
    for source in files:
        for name, (owner, is_trait), *_ in source.functions:
            if owner and not is_trait:
                homes[name].add((owner, source.name))
    edges = collections.defaultdict(set)
    for source in files:
        if source.path.stem == "mod":
            continue
        for stem in re.findall(r"\bsuper::(\w+)::", source.text):
            if stem in stems:
                edges[source.name, stems[stem]].add("use")
        for match in re.finditer(r"(?:\b(self|Self)\b)?(?:\.|::)\s*(\w+)(?:::<[^()]*>)?\(", source.text):
            by, name = match.groups()
            places = homes.get(name, set())
            if name in STANDARD and not by:
                continue
            if by:
                owner, _ = source.type_at(match.start())
                places = {place for place in places if place[0] == owner}
            files_of = {file for _, file in places}
            if len(files_of) == 1:
                edges[source.name, files_of.pop()].add(f".{name}()")
    return {(a, b): by for (a, b), by in edges.items() if a != b}


def circles(edges):
    """Return the sets of more than one file that reach each other (Tarjan)."""
    after = collections.defaultdict(set)
    for one, other in edges:
        after[one].add(other)
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(after[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            part = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(part) > 1:
                found.append(part)

    for node in sorted(after):
        if node not in index:
            visit(node)
    return found


def not_run(manifest):
    """Yield files with tests that cargo does not run, because of `test = false` or `doctest = false` in a manifest."""
    package, sources = tomllib.loads(manifest.read_text()), manifest.parent / "src"
    every, library = sorted(sources.rglob("*.rs")), package.get("lib", {})
    for target in [library, *package.get("bin", [])]:
        # The other files may belong to the library, which has its own line.
        is_program = target is not library and (sources / "lib.rs").exists()
        files = [manifest.parent / target["path"]] if is_program else every
        wanted = [pattern for pattern, key in ((TEST, "test"), (EXAMPLE, "doctest")) if target.get(key) is False]
        yield from (file for file in files if any(pattern.search(file.read_text()) for pattern in wanted))


def main():
    bad = []
    for manifest in (manifest for place in MANIFESTS for manifest in sorted(TOP.glob(place))):
        for file in not_run(manifest):
            bad.append(f"{file.relative_to(TOP)} has tests, which {manifest.relative_to(TOP)} forbids cargo to run")
    edges = uses(sources("sched"))
    if "--edges" in sys.argv[1:]:
        for (one, other), by in sorted(edges.items()):
            print(f"{one} -> {other}: {', '.join(sorted(by))}")
    for circle in circles(edges):
        bad.append("files use each other in a cycle:")
        for (one, other), by in sorted(edges.items()):
            if one in circle and other in circle:
                bad.append(f"    {one} -> {other}: {', '.join(sorted(by))}")
    by_card = {name for source in sources("card") for name in modules(source.text)}
    for source in sources("."):
        if source.path.stem in by_card and "card" in modules(source.text):
            bad.append(f"rust/{source.name} uses rust/card, and rust/card uses it")
    named = set(re.findall(r"`([\w./]+)`", (RUST.parent / "docs/architecture.md").read_text()))
    for source in (source for folder in NAMED for source in sources(folder)):
        path = source.path
        names = {path.name, f"{path.parent.name}/{path.name}"} | ({path.stem} if path.parent.name == "sched" else set())
        if not named & names:
            bad.append(f"docs/architecture.md does not name rust/{source.name}")
    for source in (source for folder in MODULE for source in sources(folder)):
        for match in re.finditer(r"\w+", source.text):
            if match.group(0) in RETIRED:
                bad.append(f"rust/{source.name}:{source.text.count(chr(10), 0, match.start()) + 1}: {match.group(0)} is retired")
    for source in sources(".", "**/*.rs"):
        if {"tests", "benches"} & set(source.path.parts):
            continue
        for name, _, place, lines, count in source.functions:
            where = f"rust/{source.name}:{source.text.count(chr(10), 0, place) + 1}: {name}"
            if lines > LINES_MAX:
                bad.append(f"{where} has {lines} lines, more than {LINES_MAX}")
            if count > PARAMETERS_MAX:
                bad.append(f"{where} has {count} parameters, more than {PARAMETERS_MAX}")
    print("\n".join(bad) or "no cycles, no long functions, no retired names")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
