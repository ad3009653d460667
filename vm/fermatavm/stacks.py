# SPDX-License-Identifier: GPL-2.0
"""Tell what the programs and processors of a machine do, and the processes that emulate the machine, for a command that does not end."""

import contextlib
import os
import re
import time
from pathlib import Path

from .common import say

TASK = re.compile(r"task:(\S+)\s+state:.* pid:(\d+) .*ppid:(\d+)")
FRAME = re.compile(r"\] +(?!\?)(\S+\+0x\S+/0x\S+.*)")
PROCESSOR = re.compile(r"CPU: \d+ .*|RIP: .*")
# Seconds without a new line after which an answer is complete, and seconds to wait for that.
QUIET, PATIENCE = 1, 20
KTHREADD = "2"
MOST_LINES = 150
# Threads with less processor time in seconds are not shown.
LEAST_TIME = 1


def ask(host, console):
    """Press the keys for messages of all levels, tasks and processors. Return the lines that the kernel writes to its console."""
    start = size = console.stat().st_size
    for key in ("8", "t", "l"):
        host.press_keys("alt", "sysrq", key)
    changed = begun = time.monotonic()
    while time.monotonic() < min(changed + QUIET, begun + PATIENCE):
        time.sleep(0.1)
        if size != (size := console.stat().st_size):
            changed = time.monotonic()
    with open(console, errors="replace") as file:
        file.seek(start)
        return file.read().splitlines()


def of_programs(lines):
    """Return the lines that tell what the programs do, without threads of the kernel, and what the processors do."""
    shown, is_program = [], False
    for line in lines:
        if task := TASK.search(line):
            _, number, parent = task.groups()
            is_program = KTHREADD not in (number, parent)
        elif "sysrq: " in line or "Sched Debug" in line:
            is_program = False
        if task and is_program:
            shown.append(task.group())
        elif is_program and (frame := FRAME.search(line)):
            shown.append(f"    {frame.group(1)}")
        elif processor := PROCESSOR.search(line):
            shown.append(processor.group())
    return shown


def show(host, console):
    try:
        lines = of_programs(ask(host, console))
    except OSError as error:
        say(f"the kernel's stacks are not shown: {error}")
        return
    for line in lines[:MOST_LINES]:
        say(line)


def threads(name, process):
    """Show name, state and processor time of the busy threads of a process of the host, and where the threads sleep."""
    for task in sorted(Path(f"/proc/{process.pid}/task").iterdir()):
        with contextlib.suppress(OSError):  # the thread has ended
            thread, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(")")
            state, *numbers = fields.split()
            seconds = (int(numbers[10]) + int(numbers[11])) / os.sysconf("SC_CLK_TCK")
            if seconds >= LEAST_TIME:
                say(f"{name}: thread {thread}: {seconds:.0f} s, {state} {(task / 'wchan').read_text()}")
