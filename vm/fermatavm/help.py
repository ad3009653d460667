# SPDX-License-Identifier: GPL-2.0
"""Check the help of the scripts in vm/, which is the comment at the head of each: it must equal the help of the script's parser, and
--help must need no build root, no Python and no HOME. A target of make that calls vm/run must have the name of the program, with dashes
for spaces. Also check that vm/clean-cache removes nothing if its option is misspelt.

--update writes the help of the scripts that have a parser; commit the result.
"""

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

from . import boot, check, kernel, module
from .common import TOP, die, say

FOLDER = TOP / "vm"
PARSERS = {"boot": boot.parser, "build-module": module.parser, "check": check.parser, "kernel": kernel.parser}
# Scripts that run in the machine, not on the host.
OF_THE_MACHINE = ("debian", "init")
# All commands that vm/help.sh may use.
COMMANDS = ("sh", "bash", "env", "dirname", "sed")
HEAD = re.compile(r"\A(#!.*\n# SPDX.*\n)((?:#.*\n)*)")


def wanted(name):
    """Return the help of a script's parser as lines of a comment."""
    lines = PARSERS[name]().format_help().splitlines()
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def update():
    for name in PARSERS:
        file = FOLDER / name
        file.write_text(HEAD.sub(lambda match, name=name: match.group(1) + wanted(name), file.read_text()))


def help_of(script, commands):
    """Return what a script prints with --help if only `commands` are in the path and no cache can be made."""
    environment = {"PATH": commands, "FERMATA_CACHE": "/proc/none"}
    done = subprocess.run([script, "--help"], env=environment, capture_output=True, text=True, cwd="/")
    return done.stdout if done.returncode == 0 and not done.stderr else f"status {done.returncode}: {done.stderr}"


def programs_of_targets():
    """Yield each target of the Makefile that calls vm/run, with the words of each call before the first option or variable."""
    for target, recipe in re.findall(r"(?m)^([\w-]+):.*\n((?:\t.*\n)+)", (TOP / "Makefile").read_text()):
        for call in re.findall(r"@vm/run (.*)", recipe):
            yield target, re.match(r"(?:[a-z]+\b ?)+", call).group().split()


def complaints():
    for target, words in programs_of_targets():
        if target not in ("-".join(words[:count]) for count in range(1, 1 + len(words))):
            yield f"make {target} has another name than vm/run {' '.join(words)}"
        if not re.search(rf"(?m)^#   {words[0]}\b", (FOLDER / "run").read_text()):
            yield f"vm/run --help does not name {words[0]}"
    with tempfile.TemporaryDirectory() as commands:
        for name in COMMANDS:
            (Path(commands) / name).symlink_to(f"/usr/bin/{name}")
        for script in sorted(FOLDER.iterdir()):
            if not script.is_file() or not os.access(script, os.X_OK) or script.name in OF_THE_MACHINE:
                continue
            comment = HEAD.match(script.read_text()).group(2)
            if script.name in PARSERS and comment != wanted(script.name):
                yield f"vm/{script.name}: its help is not that of its parser: vm/enter python3 -m fermatavm.help --update"
            if not comment.startswith("# usage: vm/"):
                yield f"vm/{script.name}: the comment at its head does not begin with its usage"
            printed = help_of(script, commands)
            if printed != re.sub(r"(?m)^# ?", "", comment):
                yield f"vm/{script.name} --help prints something else than the comment at its head: {printed}"
    with tempfile.TemporaryDirectory() as cache:
        kept = Path(cache) / "root-kept"
        kept.mkdir()
        done = subprocess.run([FOLDER / "clean-cache", "--odl"], env=os.environ | {"FERMATA_CACHE": cache}, capture_output=True)
        if done.returncode == 0 or not kept.exists():
            yield "vm/clean-cache --odl removes the cache"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the help of the scripts that have a parser")
    args = parser.parse_args()
    # As wide as the scripts' lines.
    os.environ["COLUMNS"] = "120"
    if args.update:
        update()
        return
    wrong = list(complaints())
    for complaint in wrong:
        say(complaint)
    if wrong:
        die(f"{len(wrong)} complaints about the help of scripts")


if __name__ == "__main__":
    main()
