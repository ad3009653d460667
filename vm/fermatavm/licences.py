# SPDX-License-Identifier: GPL-2.0
"""Check the licences of what the programs and libraries of the workspace link, as docs/dependencies.md says.

Each member has one of the licences in MAY_LINK, and each crate that a member links, directly or not, has a licence that the member's
licence allows. Crates that only builds or tests link are not distributed, and do not count. The SPDX lines of a member's files name its
licence. An argument names a workspace other than that of the top folder.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from .common import TOP, say

PERMISSIVE = {"MIT", "Zlib", "Unlicense", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "ISC", "Unicode-3.0"}
# Licences that a member may link, by the member's licence. GPL-2.0 means version 2 only, which cannot be combined with Apache-2.0.
MAY_LINK = {
    "GPL-2.0": PERMISSIVE | {"GPL-2.0", "GPL-2.0-or-later"},
    "GPL-2.0-or-later": PERMISSIVE | {"Apache-2.0", "GPL-2.0-or-later"},
    "MIT OR Apache-2.0": PERMISSIVE | {"Apache-2.0"},
}
TOKEN = re.compile(r"[()/]|[\w.+-]+(?: WITH [\w.+-]+)?")
SPDX = re.compile(r"SPDX-License-Identifier: (.+)")


def allows(expression, allowed):
    """Return whether licences of a set satisfy an SPDX expression. crates.io also has `A/B`, which means `A OR B`."""
    tokens = TOKEN.findall(expression)

    def operand():
        token = tokens.pop(0)
        if token != "(":
            return token in allowed
        inside = alternatives()
        tokens.pop(0)
        return inside

    def conjunction():
        found = operand()
        while tokens[:1] == ["AND"]:
            tokens.pop(0)
            found = operand() and found
        return found

    def alternatives():
        found = conjunction()
        while tokens[:1] in (["OR"], ["/"]):
            tokens.pop(0)
            found = conjunction() or found
        return found

    return alternatives() and not tokens


def linked(member, nodes, packages):
    """Return the packages that a member links by normal dependencies, without macros, which run only in the compiler."""
    found, todo = set(), [member]
    while todo:
        for dependency in nodes[todo.pop()]["deps"]:
            package = packages[dependency["pkg"]]
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            is_macro = any("proc-macro" in target["kind"] for target in package["targets"])
            if is_linked and not is_macro and package["id"] not in found:
                found.add(package["id"])
                todo.append(package["id"])
    return [packages[name] for name in found]


def wrong_files(package):
    """Yield complaints about the member's files that name another licence than its Cargo.toml."""
    folder = Path(package["manifest_path"]).parent
    for file in [folder / "Cargo.toml", *sorted(folder.rglob("*.rs"))]:
        named = SPDX.search(file.read_text())
        if not named or named.group(1) != package["license"]:
            yield f"{file.relative_to(TOP)}: its SPDX line does not name {package['license']}, the licence of {package['name']}"


def complaints(metadata):
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    for member in map(packages.get, metadata["workspace_members"]):
        name, licence = member["name"], member["license"]
        if licence not in MAY_LINK:
            yield f"{name}: its licence is {licence}, none of {', '.join(MAY_LINK)}"
            continue
        yield from wrong_files(member)
        for crate in linked(member["id"], nodes, packages):
            if not allows(crate["license"] or "none", MAY_LINK[licence]):
                yield f"{name} ({licence}) links {crate['name']} {crate['version']}, whose licence is {crate['license']}"


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]
    metadata = json.loads(subprocess.run(command, cwd=TOP.joinpath(*sys.argv[1:]), capture_output=True, text=True, check=True).stdout)
    wrong = sorted(complaints(metadata))
    for complaint in wrong:
        print(complaint)
    say(f"licences: {len(wrong)} complaints about {len(metadata['workspace_members'])} members and {len(metadata['packages'])} crates")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
