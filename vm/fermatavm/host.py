# SPDX-License-Identifier: GPL-2.0
"""Act on the machine from outside, by request of a program in the machine: plug and unplug cards, press the power button. If a command
exceeds its time limit, also show what the machine is doing.

The program writes lines `ID VERB [NUMBER]` to the port fermata.host. The answer is `ID ok` or `ID err MESSAGE` (ID is any word).

  unplug N    unplug card N; the answer comes when the machine has released the card
  plug N      plug card N in again
  button MS   press the power button after MS milliseconds, and every two seconds after that; 0: stop
  boots 1     the machine boots again after a reset or power-off; 0: the machine ends then
"""

import contextlib
import json
import os
import re
import socket
import threading
import time
from pathlib import Path

from .common import say

# Seconds to wait for a card to be released, which happens when its driver has released it.
PATIENCE = 30
BUTTON_AGAIN = 2

TASK = re.compile(r"task:(.+?)\s+state:.* pid:(\d+) .*ppid:(\d+)")
FRAME = re.compile(r"\] +(?!\?)(\S+\+0x\S+/0x\S+.*)")
PROCESSOR = re.compile(r"CPU: \d+ .*|RIP: .*")
# Seconds without a new line after which the kernel's answer is complete. Seconds to wait for the answer.
QUIET, ANSWER = 1, 20
KTHREADD = "2"
# Maximum number of lines to show of the stacks, and of the log of a card.
MOST_LINES, CARD_LINES = 150, 5
# Threads with less processor time, in seconds, are not shown.
LEAST_TIME = 1


class Monitor:
    """A client of QEMU's monitor (QMP)."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(path)
        self.lines = self.socket.makefile("r")
        self.lock = threading.Lock()
        self.events = []
        self._read()
        self.ask("qmp_capabilities")

    def _read(self):
        """Return the next message; keep events."""
        line = self.lines.readline()
        if not line:
            raise OSError("the monitor is gone")
        message = json.loads(line)
        if "event" in message:
            self.events.append(message)
        return message

    def ask(self, command, **arguments):
        """Execute a command and return its answer. Raises OSError if QEMU refuses the command."""
        with self.lock:
            self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
            while "event" in (answer := self._read()):
                pass
        if "error" in answer:
            raise OSError(answer["error"]["desc"])
        return answer["return"]

    def press_keys(self, *keys):
        """Press keys of the machine's keyboard together."""
        self.ask("send-key", keys=[{"type": "qcode", "data": key} for key in keys])

    def until_deleted(self, device):
        """Wait until QEMU has released the device."""

        def is_it(message):
            return message["event"] == "DEVICE_DELETED" and message["data"].get("device") == device

        with self.lock:
            while not any(map(is_it, self.events)):
                self._read()
            self.events = [event for event in self.events if not is_it(event)]


class Host:
    """Answers the machine's requests, in its own thread, until QEMU has exited."""

    def __init__(self, run, cards):
        self.path, self.monitor_path = f"{run}/host.sock", f"{run}/host.qmp"
        self.cards, self.monitor, self.button, self.booter = cards, None, None, None
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(1)
        threading.Thread(target=self.serve, daemon=True).start()

    def qemu(self):
        """Return QEMU's options for the monitor."""
        return ["-qmp", f"unix:{self.monitor_path},server=on,wait=off"]

    def stop(self):
        """Stop pressing the power button."""
        self.press(0)
        self.leave_off()
        self.listener.close()

    def serve(self):
        try:
            stream, _ = self.listener.accept()
            for line in stream.makefile("r"):
                words = line.split()
                if words:
                    stream.sendall(f"{words[0]} {self.answer(words[1:])}\n".encode())
        except OSError:
            # The machine has ended.
            return

    def answer(self, words):
        verbs = {"unplug": self.unplug, "plug": self.plug, "button": self.press, "boots": self.boot_again}
        try:
            verb, number = words
            verbs[verb](int(number))
        except (KeyError, IndexError, ValueError):
            return f"err no such request: {' '.join(words)}"
        except OSError as error:
            return f"err {error}"
        return "ok"

    def ask(self, command, **arguments):
        if not self.monitor:
            self.monitor = Monitor(self.monitor_path)
        return self.monitor.ask(command, **arguments)

    def unplug(self, number):
        device = self.cards[number].device()
        self.ask("device_del", id=device["id"])
        self.monitor.until_deleted(device["id"])

    def plug(self, number):
        self.ask("device_add", **self.cards[number].device())

    def boot_again(self, on):
        self.leave_off()
        if not on:
            self.ask("set-action", reboot="shutdown", shutdown="poweroff")
            return
        self.ask("set-action", reboot="reset", shutdown="pause")
        self.booter = threading.Event()
        threading.Thread(target=self.keep_booting, args=(self.booter,), daemon=True).start()

    def leave_off(self):
        if self.booter:
            self.booter.set()
            self.booter = None

    def keep_booting(self, enough):
        while not enough.wait(0.2):
            if self.ask("query-status")["status"] == "shutdown":
                self.ask("system_reset")
                self.ask("cont")

    def press(self, ms):
        if self.button:
            self.button.set()
            self.button = None
        if ms:
            self.button = threading.Event()
            threading.Thread(target=self.keep_pressing, args=(self.button, ms / 1000), daemon=True).start()

    def keep_pressing(self, enough, wait):
        while not enough.wait(wait):
            self.ask("system_powerdown")
            wait = BUTTON_AGAIN


def ask_stacks(monitor, console):
    """Press the keys for messages of all levels, processors and tasks. Return the lines that the kernel writes to its console."""
    start = size = console.stat().st_size
    for key in ("8", "l", "t"):
        monitor.press_keys("alt", "sysrq", key)
    begun = changed = time.monotonic()
    while time.monotonic() < begun + ANSWER and (size == start or time.monotonic() < changed + QUIET):
        time.sleep(0.1)
        if size != (size := console.stat().st_size):
            changed = time.monotonic()
    with open(console, errors="replace") as file:
        file.seek(start)
        return file.read().splitlines()


def of_programs(lines):
    """Return the lines that show what the processors do, and the stacks of programs, without threads of the kernel."""
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


def show_stacks(qemu, cards, monitor_path, console):
    """Show what a machine does when its command exceeds the time limit: the stacks of its programs, the busy threads of QEMU and of the
    cards, and the last lines of the cards' logs. Show whatever is available: a machine that is frozen does not answer."""
    try:
        show_threads("qemu", qemu)
        for card in cards:
            show_threads(f"card {card.index}", card.process)
            for line in card.log.read_text(errors="replace").splitlines()[-CARD_LINES:]:
                say(f"card {card.index}: {line}")
        lines = of_programs(ask_stacks(Monitor(monitor_path), console))
    except (OSError, ValueError) as error:
        say(f"the stacks of the machine's programs are not shown: {error}")
        return
    for line in lines[:MOST_LINES]:
        say(line)
    if len(lines) > MOST_LINES:
        say(f"{len(lines) - MOST_LINES} lines more are in the console's log")
