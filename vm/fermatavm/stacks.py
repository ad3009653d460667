# SPDX-License-Identifier: GPL-2.0
"""Show what a machine does whose command exceeds its time limit: the stacks of the machine's programs, the busy threads of QEMU and of
the cards, and the last lines of the cards' logs."""

import contextlib
import os
import re
import time
from pathlib import Path

from .common import say
from .host import Monitor

TASK = re.compile(r"task:(.+?)\s+state:.* pid:(\d+) .*ppid:(\d+)")
FRAME = re.compile(r"\] +(?!\?)(\S+\+0x\S+/0x\S+.*)")
PROCESSOR = re.compile(r"CPU: \d+ .*|RIP: .*")
# The kernel's answer is complete after so many seconds without a new line. Seconds to wait for the answer.
QUIET, PATIENCE = 1, 20
KTHREADD = "2"
# Lines that are shown at most of the stacks, and of the log of a card.
MOST_LINES, CARD_LINES = 150, 5
# Threads with less processor time in seconds are not shown.
LEAST_TIME = 1


def ask(monitor, console):
    """Press the keys for messages of all levels, processors and tasks. Return the lines that the kernel writes to its console."""
    start = size = console.stat().st_size
    for key in ("8", "l", "t"):
        monitor.press_keys("alt", "sysrq", key)
    begun = changed = time.monotonic()
    while time.monotonic() < begun + PATIENCE and (size == start or time.monotonic() < changed + QUIET):
        time.sleep(0.1)
        if size != (size := console.stat().st_size):
            changed = time.monotonic()
    with open(console, errors="replace") as file:
        file.seek(start)
        return file.read().splitlines()


def of_programs(lines):
    """Return the lines that tell what the processors do, and the stacks of programs, without threads of the kernel."""
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


def show_threads(name, process):
    """Show name, state and processor time of the busy threads of a process of the host, and where the threads sleep."""
    for task in sorted(Path(f"/proc/{process.pid}/task").iterdir()):
        with contextlib.suppress(OSError):  # the thread has ended
            thread, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(")")
            state, *numbers = fields.split()
            seconds = (int(numbers[10]) + int(numbers[11])) / os.sysconf("SC_CLK_TCK")
            if seconds >= LEAST_TIME:
                say(f"{name}: thread {thread}: {seconds:.0f} s, {state} {(task / 'wchan').read_text()}")


def show(qemu, cards, monitor_path, console):
    """Show all that can be had: a machine that is frozen does not answer."""
    try:
        show_threads("qemu", qemu)
        for card in cards:
            show_threads(f"card {card.index}", card.process)
            for line in card.log.read_text(errors="replace").splitlines()[-CARD_LINES:]:
                say(f"card {card.index}: {line}")
        lines = of_programs(ask(Monitor(monitor_path), console))
    except (OSError, ValueError) as error:
        say(f"the stacks of the machine's programs are not shown: {error}")
        return
    for line in lines[:MOST_LINES]:
        say(line)
    if len(lines) > MOST_LINES:
        say(f"{len(lines) - MOST_LINES} lines more are in the console's log")
