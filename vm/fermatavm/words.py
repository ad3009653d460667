# SPDX-License-Identifier: GPL-2.0
"""Print the words of each page (*.md that git knows), counted as `wc -w` does, the words of its longest table cell, and the total.

Exits 1 if a page has more than 5,000 words, a cell more than 60, or all pages together more than 54,100. A long list, such as a table of
all mutations, belongs in a file of data that a command prints.
"""

import argparse
import re
import subprocess
import sys

from .common import TOP, die

PAGE, CELL, ALL = 5_000, 60, 54_100
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
BAR = re.compile(r"(?<!\\)\|")


def pages():
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--", "*.md"], cwd=TOP, check=True, capture_output=True, text=True
    )
    # A page that is removed but not yet committed is still listed.
    return [TOP / name for name in done.stdout.split("\0") if name and (TOP / name).exists()]


def cells(text):
    """Yield the line number and the words of each cell of the tables, which are not in a block of code."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        if mark := FENCE.match(line):
            fence = None if fence and mark.group(1).startswith(fence) else fence or mark.group(1)
        elif not fence and line.lstrip().startswith("|"):
            for cell in BAR.split(line.strip().strip("|")):
                yield number, len(cell.split())


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    total, wrong = 0, []
    print(f"{'words':>7} {'cell':>5}  page")
    for page in pages():
        name, text = page.relative_to(TOP), page.read_text()
        words, found = len(text.split()), list(cells(text))
        total += words
        print(f"{words:7,} {max((count for _, count in found), default=0):5}  {name}")
        if words > PAGE:
            wrong.append(f"{name} has {words:,} words, more than {PAGE:,}")
        wrong += [f"{name}:{number}: a cell of the table has {count} words, more than {CELL}" for number, count in found if count > CELL]
    print(f"{total:7,}        all (at most {ALL:,})", flush=True)
    if total > ALL:
        wrong.append(f"the pages have {total:,} words, more than {ALL:,}")
    if wrong:
        die("\nfermata: ".join(wrong))


if __name__ == "__main__":
    sys.exit(main())
