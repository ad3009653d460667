# SPDX-License-Identifier: GPL-2.0
"""Check the code blocks of the pages, and run their commands.

A block is fenced, and the word after the fence is its language. A block of `sh` has a second word that says how it is tested:

  sh vm           run in one machine, as `make vm` boots it, in its Debian system
  sh host         run in the build root, in the checkout
  sh step=NAME    the step NAME of vm/checks, vm/checks-all or vm/checks-debug does the same
  sh needs="..."  not run: this is what a test lacks

With `file=NAME` as its second word, the text of a block in another language is the file NAME for the `sh vm` blocks of its page.

`check` looks at every block of every page. `run [PAGE...]` (default: all pages) runs the blocks of each page in their order, in a shell
of the page's own that ends at the first failure, first those of the host, then those of the machine. The output of `run` is TAP;
build/blocks/ gets the output of each page.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from .common import BUILD, TOP, Points, die, locked, say
from .steps import TABLES, read_table

LANGUAGES = set("c cpp dockerfile ini json make promql python rust sh text toml udev verilog xml yaml".split())
FENCE = re.compile(r"( *)(`{3,}|~{3,}) *(.*)")
ITEM = re.compile(r"( *(?:[-*+]|\d+[.)]) +)\S")
TEST = re.compile(r'vm|host|step=([\w.+-]+)|needs="[^"]+"')
FILE = re.compile(r"file=([\w.-]+)")
KEPT = BUILD / "blocks"
# In the machine, the blocks' scripts and files.
PLACE = "/machine/blocks"
BEGINS, ENDS = "@ block begins:", "@ block ends:"


class Block:
    """A fenced block of a page: its place, the words after its fence, and its text."""

    def __init__(self, page, line, info, text):
        self.page, self.line, self.text = page, line, text
        self.language, _, self.test = (word.strip() for word in info.partition(" "))
        named, file = TEST.fullmatch(self.test), FILE.fullmatch(self.test)
        self.is_known = bool(named) if self.language == "sh" else not self.test or bool(file)
        self.step = named.group(1) if self.language == "sh" and named else None
        self.file = file.group(1) if self.language != "sh" and file else None

    def runs_in(self, where):
        return self.language == "sh" and self.test == where

    def __str__(self):
        return f"{self.page.relative_to(TOP)}:{self.line}"


def pages():
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    files = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True).stdout.splitlines()
    return [TOP / file for file in files if (TOP / file).exists()]


def parts(page):
    """Yield the lines outside of blocks as pairs of number and line, and the blocks."""
    begin = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if begin:
            if fence and not fence.group(3) and fence.group(2).startswith(mark):
                yield Block(page, begin, info, "".join(f"{line}\n" for line in text))
                begin = None
            else:
                text.append(line.removeprefix(indent))
        elif fence:
            begin, text, (indent, mark, info) = number, [], fence.groups()
        else:
            yield number, line
    if begin:
        yield Block(page, begin, f"{info} without an end", "")


def blocks_of(page):
    return [part for part in parts(page) if isinstance(part, Block)]


def indented_lines(page):
    """Yield the numbers of the lines at which a block begins that has no fence: four more spaces than the text around."""
    margin, after_text = 0, False
    for part in parts(page):
        if isinstance(part, Block):
            after_text = False
            continue
        number, line = part
        depth = len(line) - len(line.lstrip(" "))
        if not line.strip():
            after_text = False
            continue
        if depth >= margin + 4 and not after_text and not ITEM.match(line[margin:]):
            yield number
        elif not after_text and depth < margin:
            margin = 0
        item = ITEM.match(line)
        if item and depth < margin + 4:
            margin = len(item.group(1))
        # A line right after a paragraph belongs to the paragraph, whatever its indentation.
        after_text = not line.startswith("#")


def complaints(page, steps):
    for block in blocks_of(page):
        if block.language not in LANGUAGES:
            yield f"{block}: a block in {block.language or 'no language'}, none of {', '.join(sorted(LANGUAGES))}"
        elif not block.is_known:
            wants = 'vm, host, step=NAME or needs="..."' if block.language == "sh" else "nothing or file=NAME"
            yield f"{block}: `{block.language}` is followed by {block.test or 'nothing'}: {wants} is expected"
        elif block.step and block.step not in steps:
            yield f"{block}: the checks have no step {block.step}"
    for number in indented_lines(page):
        yield f"{page.relative_to(TOP)}:{number}: an indented block: use a fence and a language"


def check():
    steps = {step.name for table in TABLES for step in read_table(table)}
    wrong = [complaint for page in pages() for complaint in complaints(page, steps)]
    for complaint in wrong:
        print(complaint)
    if wrong:
        die(f"{len(wrong)} complaints about blocks of the pages")


def name_of(page):
    return str(page.relative_to(TOP)).replace("/", "-").removesuffix(".md")


def script(blocks):
    """Return a script of bash that runs blocks and marks where each begins and ends."""
    text = "exec 2>&1\nset -e\n"
    for block in blocks:
        text += f"echo {shlex.quote(f'{BEGINS} {block}')}\n{block.text}\necho {shlex.quote(f'{ENDS} {block}')}\n"
    return text


def judge(points, blocks, output):
    """Print a point for each block of a page: has the output of the page's script the mark of the block's end?"""
    lines = output.splitlines()
    failed = None
    for block in blocks:
        good = f"{ENDS} {block}" in lines
        if not good and not failed:
            failed = block
            begin = next((n for n, line in enumerate(lines) if line == f"{BEGINS} {block}"), len(lines))
            for line in lines[begin:][-30:]:
                print(f"# {line}")
        points.point(good, f"{block}" if good or failed is block else f"{block}, which comes after {failed}")


def on_host(points, page, blocks):
    done = subprocess.run(
        ["bash", "-c", script(blocks)], cwd=TOP, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    )
    (KEPT / f"{name_of(page)}.host.log").write_text(done.stdout)
    judge(points, blocks, done.stdout)


def in_machine(points, wanted):
    """Run blocks of pages in one machine: `wanted` is {page: blocks}."""
    place = KEPT / "machine"
    place.mkdir()
    lines = ["mkdir -p /report/blocks"]
    for page, blocks in wanted.items():
        name = name_of(page)
        (place / name).mkdir()
        (place / f"{name}.sh").write_text(script(blocks))
        for block in blocks_of(page):
            if block.file:
                (place / name / block.file).write_text(block.text)
        lines += [f"cp -r {PLACE}/{name} /root/", f"cd /root/{name}", f"bash {PLACE}/{name}.sh </dev/null >/report/blocks/{name}.log"]
    (place / "all").write_text("".join(f"{line}\n" for line in [*lines, "true"]))
    boot = f"--name blocks --timeout 1500 --add {place}:blocks"
    done = subprocess.run(["make", "-s", "vm", f"BOOT={boot}", f"RUN=debian bash {PLACE}/all"], cwd=TOP, stdout=subprocess.PIPE, text=True)
    for page, blocks in wanted.items():
        log = BUILD / f"vm/blocks/files/blocks/{name_of(page)}.log"
        output = log.read_text(errors="replace") if log.exists() else ""
        (KEPT / f"{name_of(page)}.vm.log").write_text(output)
        judge(points, blocks, output)
    points.point(done.returncode == 0, "the machine, the card and the kernel are content")


def run(chosen):
    with locked(BUILD / ".blocks.lock"):
        run_alone(chosen)


def run_alone(chosen):
    points = Points()
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    wanted = {where: {} for where in ("host", "vm")}
    for page in chosen:
        for where, found in wanted.items():
            blocks = [block for block in blocks_of(page) if block.runs_in(where)]
            if blocks:
                found[page] = blocks
    for page, blocks in wanted["host"].items():
        on_host(points, page, blocks)
    if wanted["vm"]:
        in_machine(points, wanted["vm"])
    if not points.number:
        say("no block of these pages is run")
    points.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "run"])
    parser.add_argument("page", nargs="*", help="pages to run, default all")
    args = parser.parse_args()
    if args.what == "check":
        check()
    else:
        run([TOP / page for page in args.page] or pages())


if __name__ == "__main__":
    sys.exit(main())
