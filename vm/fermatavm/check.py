# SPDX-License-Identifier: GPL-2.0
"""Run the checks of vm/checks (--debug: vm/checks-debug) and count them; the last line is `N passed, N failed`.

Logs are kept in build/check/ (build/check-debug/).
"""

import argparse
import fnmatch
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from .common import BUILD, JOBS, TOP, die, say
from .kernel import DEBUG, kernel_named, pins

POINT = re.compile(r"^(\s*)(ok|not ok) (\d+)\b(?:\s*-)?\s*(.*)$")
PLAN = re.compile(r"^(\s*)1\.\.(\d+)")
# What a test says of itself, without the harness's own lines.
WORDS = re.compile(r"^\s+# (?!\s|Starting |.*: Test failed|FAILED|PASSED|Totals|\d+ skipped)")


class Step:
    """One line of the table: it counts as one check, or (`tap`) as its TAP points; and may run `beside` others."""

    def __init__(self, kind, name, command, logs):
        self.tap, self.beside, self.name, self.command = kind.startswith("tap"), kind.endswith("+"), name, command
        self.log = logs / (re.sub(r"[^\w.+-]+", "-", name) + ".log")
        self.passed, self.failures, self.skipped, self.seconds = 0, [], 0, 0

    def run(self):
        begin = time.monotonic()
        with open(self.log, "wb") as log:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", self.command], cwd=TOP, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"FERMATA_LOG": str(self.log), "JOBS": str(JOBS)},
            )  # fmt: skip
            status = process.wait()
        if self.tap:
            self.count_points(status)
        elif status:
            self.failures.append(f"status {status}")
        else:
            self.passed += 1
        self.seconds = time.monotonic() - begin
        return self

    def count_points(self, status):
        """Count the TAP points of the log. A point that closes a subtest (indented points before it) counts only when it
        tells of a failure that no point of the subtest told of."""
        planned, inner, inner_failed, program, why = 0, 0, 0, "", []
        for line in self.log.read_text(errors="replace").splitlines():
            plan, point = PLAN.match(line), POINT.match(line)
            if WORDS.match(line):
                why.append(line.strip(" #"))
            if line.startswith("# "):
                program = line[2:]
            if plan:
                planned += int(plan.group(2))
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
            if "# SKIP" in what:
                self.skipped += 1
            elif good:
                self.passed += 1
            else:
                self.failures.append((what or f"point {point.group(3)}") + said)
        if planned > 0:
            self.failures.append(f"{planned} planned points never reported")
        if status and not self.failures:
            self.failures.append(f"status {status}")
        if not self.passed and not self.failures:
            self.failures.append("no point reported")


def read_table(table, logs):
    """Steps of a table; {a,b} in a `NAME` field expands to one step per choice, and @1, @2, ... name the choices in the command."""
    steps = []
    text = table.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|", 2)]
        if len(fields) != 3 or fields[0] not in ("step", "tap", "step+", "tap+"):
            die(f"vm/{table.name}: not `step|tap|step+|tap+ | name | command`: {line}")
        kind, name, command = fields
        choices = [group.split(",") for group in re.findall(r"\{([^}]*)\}", name)]
        pieces = re.split(r"\{[^}]*\}", name)
        for chosen in itertools.product(*choices):
            full, text = pieces[0], command
            for number, (choice, piece) in enumerate(zip(chosen, pieces[1:], strict=True), 1):
                full += choice + piece
                text = text.replace(f"@{number}", choice)
            steps.append(Step(kind, full, text, logs))
    return steps


def main():
    parser = argparse.ArgumentParser(prog="vm/check", description=__doc__)
    parser.add_argument("pattern", nargs="*", help="only steps whose name has this in it (shell wildcards)")
    parser.add_argument("--debug", action="store_true", help="those on the kernel that looks for mistakes")
    parser.add_argument("--list", action="store_true", help="list the steps and their commands")
    args = parser.parse_args()
    # At once: the namespace ends with this process, and with it what still runs.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    logs = BUILD / ("check-debug" if args.debug else "check")
    steps = read_table(TOP / ("vm/checks-debug" if args.debug else "vm/checks"), logs)
    if args.pattern:
        steps = [s for s in steps if any(fnmatch.fnmatch(s.name, f"*{p}*") for p in args.pattern)] or die("no such step")
    if args.list:
        for step in steps:
            print(f"{step.name}\n    {step.command}")
        return
    for series in [DEBUG] if args.debug else pins():
        os.environ[f"KERNEL_{series.replace('.', '_').replace('-', '_')}"] = str(kernel_named(series).ensure().dir)
    shutil.rmtree(logs, ignore_errors=True)
    results = logs / "results"
    results.mkdir(parents=True)
    os.environ["FERMATA_RESULTS"] = str(results)
    # A machine that boots and tests keeps less than one processor busy: much of its time it waits. On the debug kernel it does not.
    run_all(steps, logs, min(JOBS if args.debug else JOBS + 1, 4))


def run_steps(steps, width):
    """Runs steps in their order, but so many beside one another where they may; yields each when it and those before it are done."""
    for beside, group in itertools.groupby(steps, key=lambda step: step.beside):
        with ThreadPoolExecutor(width if beside else 1) as pool:
            try:
                yield from pool.map(Step.run, group)
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                die("interrupted")


def tell(step, place):
    """Prints how a step went, and what one needs to see of a failure."""
    result = "FAILED" if step.failures else "ok"
    counts = f" {step.passed} passed" if step.tap else ""
    counts += f", {step.skipped} skipped" if step.skipped else ""
    print(f"[{place}] {step.name}: {result}{counts} ({step.seconds:.0f} s)", flush=True)
    if step.failures:
        for failure in step.failures[:20]:
            print(f"    {failure}")
        for line in step.log.read_text(errors="replace").splitlines()[-25:]:
            print(f"    | {line}")
        print(f"    log: {str(step.log).removeprefix(f'{TOP}/')}", flush=True)


def run_all(steps, logs, width):
    started = time.monotonic()
    for number, step in enumerate(run_steps(steps, width), 1):
        tell(step, f"{number}/{len(steps)}")
        if sys.stdout.isatty() and number < len(steps):
            print(f"[{number + 1}/{len(steps)}] {steps[number].name} ...", end="\r", flush=True)
    passed = sum(step.passed for step in steps)
    failed = sum(len(step.failures) for step in steps)
    say(f"{len(steps)} steps in {time.monotonic() - started:.0f} s, logs in {str(logs).removeprefix(f'{TOP}/')}/")
    for step in steps:
        for failure in step.failures:
            print(f"failed: {step.name}: {failure}")
    summary = f"{passed} passed, {failed} failed"
    (logs / "summary").write_text(summary + "\n")
    print(summary, flush=True)
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
