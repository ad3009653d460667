# SPDX-License-Identifier: GPL-2.0
"""Check the structure of rust/: uses between files, sizes of functions, names.

python3 -m fermatavm.structure exits 1 with messages if
    a file in rust/*.rs uses rust/card and rust/card uses the file,
    docs/architecture.md does not name a file of the module,
    a function in rust/ has more than 60 lines or 6 parameters,
    code of the module has a retired identifier instead of a standard term (docs/glossary.md), or
    cargo does not run a test because Cargo.toml has `test = false` or `doctest = false`."""

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
NAMED = (".", "card", "context", "dump", "scheduler")
MODULE = (".", "card", "context", "dump", "ioctl", "measure", "scheduler", "sysfs")

STRING = re.compile(r'//[^\n]*|/\*.*?\*/|b?r?"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\])\'', re.S)
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
    """A file and its functions."""

    def __init__(self, path):
        self.path = path
        self.name = str(path.relative_to(RUST))
        self.text = STRING.sub(blank, path.read_text(encoding="utf-8"))
        self.functions = list(self.find_functions())

    def find_functions(self):
        """Yield name, position, lines and number of parameters of each function."""
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
            yield match.group(1), match.start(), self.text.count("\n", match.start(), last) + 1, \
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


def module(folder):
    """Return the files of the module in a folder; those of the scheduler are in folders of their own."""
    return sources(folder, "**/*.rs" if folder == "scheduler" else "*.rs")


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
    by_card = {name for source in sources("card") for name in modules(source.text)}
    for source in sources("."):
        if source.path.stem in by_card and "card" in modules(source.text):
            bad.append(f"rust/{source.name} uses rust/card, and rust/card uses it")
    named = set(re.findall(r"`([\w./]+)`", (RUST.parent / "docs/architecture.md").read_text()))
    for source in (source for folder in NAMED for source in module(folder)):
        path = source.path
        names = {path.name, f"{path.parent.name}/{path.name}"} | ({path.stem} if source.name.startswith("scheduler/") else set())
        if not named & names:
            bad.append(f"docs/architecture.md does not name rust/{source.name}")
    for source in (source for folder in MODULE for source in module(folder)):
        for match in re.finditer(r"\w+", source.text):
            if match.group(0) in RETIRED:
                bad.append(f"rust/{source.name}:{source.text.count(chr(10), 0, match.start()) + 1}: {match.group(0)} is retired")
    for source in sources(".", "**/*.rs"):
        if {"tests", "benches"} & set(source.path.parts):
            continue
        for name, place, lines, count in source.functions:
            where = f"rust/{source.name}:{source.text.count(chr(10), 0, place) + 1}: {name}"
            if lines > LINES_MAX:
                bad.append(f"{where} has {lines} lines, more than {LINES_MAX}")
            if count > PARAMETERS_MAX:
                bad.append(f"{where} has {count} parameters, more than {PARAMETERS_MAX}")
    print("\n".join(bad) or "no long functions, no retired names")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
