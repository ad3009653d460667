# SPDX-License-Identifier: GPL-2.0
"""Test the shell of `make vm` as a person meets it, over a pseudoterminal: the size of the terminal, the greeting, and the lines that
README.md lets a new user try, which are read from there. The output is TAP.
"""

import os
import pty
import re
import sys

import pexpect

from . import blocks, boot
from .common import BUILD, TOP, Points

STEP = "first-lines"
SIZE = (33, 101)
# What the screen has after each line.
EXPECTED = {
    "fermatactl": ["/dev/fermata0", "sha256"],
    "/examples/hash abc": ["ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"],
    "fermatactl top": ["SLOT"],
}
PROMPT = re.compile(r"root@fermata:[^#]*# ")
# Sequences by which programs move the cursor and colour the text.
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9]|[=>78])")
# Seconds after which the machine counts as hung; nothing else depends on time. The programs may have to be built first.
HUNG = 1800


class Session:
    """A run of `make vm`. Each method returns what the terminal has shown since the last one."""

    def __init__(self, log):
        self.terminal = pexpect.spawn("make", ["vm"], cwd=str(TOP), dimensions=SIZE, timeout=HUNG, encoding="utf-8", codec_errors="replace")
        self.terminal.logfile_read = log

    def shown(self, pattern):
        self.terminal.expect(pattern)
        return ESCAPES.sub("", self.terminal.before + self.terminal.after)

    def type(self, line):
        self.terminal.sendline(line)
        self.terminal.expect("\n")
        return self.shown(PROMPT)

    def top(self, line):
        """Type a line that starts `top`; end `top` when it has drawn a table."""
        self.terminal.sendline(line)
        text = self.shown(EXPECTED[line][0])
        self.terminal.send("q")
        return text + self.shown(PROMPT)

    def end(self, line):
        """Type the line that ends the machine; return the status of `make vm`."""
        self.terminal.sendline(line)
        self.terminal.expect(pexpect.EOF)
        self.terminal.close()
        return self.terminal.exitstatus


def first_lines():
    """Return the commands of README.md that this program types, without their comments."""
    [block] = [block for block in blocks.blocks_of(TOP / "README.md") if block.step == STEP]
    return [re.sub(r"\s+#.*", "", line) for line in block.text.splitlines()]


def main():
    points = Points()
    with open(BUILD / "shell.log", "w") as log:
        first, *lines, last = first_lines()
        points.point(first == "make vm" and last == "exit", "the lines of README.md begin with make vm and end with exit")
        session = Session(log)
        points.point(boot.GREETING in session.shown(PROMPT), "the machine says what to try")
        points.point("{} {}".format(*SIZE) in session.type("stty size"), "the terminal has the size of the host's")
        for line in lines:
            shown = session.top(line) if line.endswith("top") else session.type(line)
            points.point(all(text in shown for text in EXPECTED[line]), f"{line} shows what it should")
        points.point(session.end(last) == 0, "the machine ends, and nothing has complained")
    line, _ = pty.openpty()
    points.point(boot.terminal(line)[:2] == boot.USUAL_SIZE, "a terminal without a size has the usual one")
    with open(os.devnull) as nothing:
        points.point(boot.terminal(nothing.fileno())[:2] == boot.USUAL_SIZE, "so has what is no terminal")
    points.end()


if __name__ == "__main__":
    sys.exit(main())
