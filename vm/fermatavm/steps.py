# SPDX-License-Identifier: GPL-2.0
"""The steps of the checks: the tables vm/checks, vm/checks-all and vm/checks-debug, and how a step runs and is counted. vm/checks
describes the format of the tables."""

import fnmatch
import itertools
import os
import re
import signal
import subprocess
import threading
import time

from .common import JOBS, TOP, die

TABLES = ("checks", "checks-all", "checks-debug")
# The first field of a line: KIND[+|!] [vm] [MINUTES] [PATH...].
HEAD = re.compile(r"(step|tap)([+!]?)( vm)?(?: (\d+)m)?((?: \S+)*)")
POINT = re.compile(r"^(\s*)(ok|not ok) (\d+)\b(?:\s*-)?\s*(.*)$")
PLAN = re.compile(r"^(\s*)1\.\.(\d+)")
# Lines that a test itself prints, without the harness's lines.
WORDS = re.compile(r"^\s+# (?!\s|Starting |.*: Test failed|FAILED|PASSED|Totals|\d+ skipped)")


class Step:
    """A line of a table: a check, or (`tap`) as many checks as its output has TAP points."""

    def __init__(self, head, name, title, command, debug):
        kind, mark, boots, minutes, paths = head.groups()
        self.tap, self.beside, self.judges = kind == "tap", mark == "+", mark == "!"
        self.boots, self.minutes, self.paths = bool(boots), int(minutes or 0), paths.split()
        self.name, self.title, self.command, self.debug = name, title, command, debug
        # Why the step is not run; the reasons of a first run that failed, if the step ran again.
        self.left_out, self.first_failures, self.process = None, [], None
        self.reset()

    def reset(self):
        self.passed, self.failures, self.skipped, self.seconds, self.cpu, self.late, self.status = 0, [], 0, 0, 0, False, 0

    def run(self, logs, latest=None, env=None):
        """Run the command, with its log in the folder `logs`; end it at the time `latest` of the monotonic clock."""
        self.log, begin = logs / f"{self.name}.log", time.monotonic()
        env = os.environ | {"FERMATA_LOG": str(self.log), "JOBS": str(JOBS), "CARGO_TERM_QUIET": "true"} | (env or {})
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", self.command], cwd=TOP, stdin=subprocess.DEVNULL, process_group=0,
                stdout=log, stderr=subprocess.STDOUT, env=env,
            )  # fmt: skip
            timer = threading.Timer(latest - begin if latest else threading.TIMEOUT_MAX, self.end)
            timer.daemon = True
            timer.start()
            _, status, usage = os.wait4(self.process.pid, 0)
            timer.cancel()
            self.process.returncode = self.status = os.waitstatus_to_exitcode(status)
        self.seconds, self.cpu = time.monotonic() - begin, usage.ru_utime + usage.ru_stime
        if latest and time.monotonic() > latest:
            self.late = True
            self.failures.append(f"no end after {self.seconds / 60:.0f} minutes")
        elif self.tap:
            self.count_points()
        elif self.status:
            self.failures.append(f"status {self.status}")
        else:
            self.passed += 1

    def end(self):
        """End the command and its children."""
        if self.process and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGTERM)

    def text(self):
        return self.log.read_text(errors="replace")

    def count_points(self):
        """Count the TAP points of the log. A point that closes a subtest (indented points before it) counts only if it reports a
        failure that no point of the subtest reports."""
        planned, inner, inner_failed, program, why, whole, missed = 0, 0, 0, "", [], True, False
        for line in self.text().splitlines():
            plan, point = PLAN.match(line), POINT.match(line)
            # A point without subtests gives its reason in the next line.
            if missed and line.startswith("# "):
                self.failures[-1] += f" ({line[2:302]})"
            missed = False
            if WORDS.match(line):
                why.append(line.strip(" #"))
            if line.startswith("# "):
                program = line[2:]
            if plan:
                planned += int(plan.group(2))
                # TAP: the plan of a program that runs nothing.
                if line.startswith("1..0 # SKIP"):
                    self.skipped, whole = self.skipped + 1, False
            if not point:
                continue
            planned -= 1
            nested, good, what = point.group(1), point.group(2) == "ok", point.group(4)
            said, why = "".join(f" ({word[:300]})" for word in why[:3]), []
            if not nested and inner:
                if not good and not inner_failed:
                    self.failures.append(what + said)
                inner = inner_failed = 0
                continue
            if nested:
                inner += 1
                inner_failed += not good
                what = f"{program}: {what}"
            if good and "# SKIP" in what:
                self.skipped += 1
            elif good:
                self.passed += 1
            else:
                self.failures.append((what or f"point {point.group(3)}") + said)
                missed = not nested
        if planned > 0:
            self.failures.append(f"{planned} planned points never reported")
        if self.status and not self.failures:
            self.failures.append(f"status {self.status}")
        if whole and not self.passed and not self.failures:
            self.failures.append("no point reported")


def word(choice):
    """Return a choice as a part of a short name."""
    return re.sub(r"[^\w.]+", "-", choice).strip("-")


def read_table(table):
    """Return the steps of vm/TABLE. {a,b} in a title makes a step per choice; @1, @2, ... name the choices in name and command."""
    steps = []
    for line in (TOP / "vm" / table).read_text().replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|", 3)]
        head = HEAD.fullmatch(fields[0])
        if len(fields) != 4 or not head:
            die(f"vm/{table}: not `step|tap[+|!] [vm] [MINUTES] [PATH...] | name | title | command`: {line}")
        _, name, title, command = fields
        choices = [group.split(",") for group in re.findall(r"\{([^}]*)\}", title)]
        pieces = re.split(r"\{[^}]*\}", title)
        for chosen in itertools.product(*choices):
            full, short, text = pieces[0], name, command
            for number, (choice, piece) in enumerate(zip(chosen, pieces[1:], strict=True), 1):
                full += choice + piece
                short = short.replace(f"@{number}", word(choice))
                text = text.replace(f"@{number}", choice)
            steps.append(Step(head, short, full, text, table == "checks-debug"))
    return steps


def chosen(steps, patterns):
    """Return the steps that the patterns choose: the step of that name, else all whose name or title contains the pattern (with shell
    wildcards). A pattern that chooses none, or more than half of the steps, is an error."""
    wanted = []
    for pattern in patterns:
        found = [step for step in steps if step.name == pattern]
        found = found or [step for step in steps if any(fnmatch.fnmatch(text, f"*{pattern}*") for text in (step.name, step.title))]
        if not found:
            die(f'no step has "{pattern}" in its name or title: vm/check --list has the names')
        if len(found) > max(len(steps) / 2, 1):
            die(f'"{pattern}" is in {len(found)} of {len(steps)} steps: give a name that vm/check --list has, or no name for all of them')
        wanted += found
    return [step for step in steps if step in wanted]


def longest_first(steps, parts):
    """Divide steps into parts of about the same expected time. Return the parts, each in the order of the steps."""
    loads, place = [0] * parts, {}
    for step in sorted(steps, key=lambda step: -step.minutes):
        place[step] = loads.index(min(loads))
        loads[place[step]] += step.minutes or 0.5
    return [[step for step in steps if place[step] == number] for number in range(parts)]
