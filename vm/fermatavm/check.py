# SPDX-License-Identifier: GPL-2.0
"""Run checks and count them; the last line is `N passed, N failed`.

The steps are those of vm/checks; with --all also those of vm/checks-all; with --debug those of vm/checks-debug. Logs are in
build/check/ (build/check-all/, build/check-debug/, build/check-rest/), times in times.json there.
"""

import argparse
import fnmatch
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from .common import BUILD, JOBS, TOP, die, say
from .kernel import DEBUG, kernel_named, pins

# The first field of a line: KIND[+|!] [MINUTES] [PATH...].
HEAD = re.compile(r"(step|tap)([+!]?)(?: (\d+)m)?((?: \S+)*)")
# Number of last commits whose changes decide the order with --rest, unless FERMATA_BASE names a commit.
COMMITS = 30
# Minutes after the end of --rest by which a late step must have ended.
GRACE = 6
POINT = re.compile(r"^(\s*)(ok|not ok) (\d+)\b(?:\s*-)?\s*(.*)$")
PLAN = re.compile(r"^(\s*)1\.\.(\d+)")
# Lines that a test itself prints, without the harness's lines.
WORDS = re.compile(r"^\s+# (?!\s|Starting |.*: Test failed|FAILED|PASSED|Totals|\d+ skipped)")


class Step:
    """A line of a table: a check, or (`tap`) as many checks as its output has TAP points."""

    def __init__(self, head, name, command, debug, logs):
        kind, mark, minutes, paths = head.groups()
        self.tap, self.beside, self.judges = kind == "tap", mark == "+", mark == "!"
        self.minutes, self.paths = int(minutes or 0), paths.split()
        self.name, self.command, self.debug = name, command, debug
        self.log = logs / (re.sub(r"[^\w.+-]+", "-", name) + ".log")
        self.passed, self.failures, self.skipped, self.seconds, self.cpu = 0, [], 0, 0, 0
        self.left_out, self.process = None, None

    def run(self, latest=None):
        """Run the command; end it at the time `latest` of the monotonic clock."""
        begin = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", self.command], cwd=TOP, stdin=subprocess.DEVNULL, process_group=0,
                stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"FERMATA_LOG": str(self.log), "JOBS": str(JOBS)},
            )  # fmt: skip
            timer = threading.Timer(latest - begin if latest else threading.TIMEOUT_MAX, self.end)
            timer.daemon = True
            timer.start()
            _, status, usage = os.wait4(self.process.pid, 0)
            timer.cancel()
            self.process.returncode = status = os.waitstatus_to_exitcode(status)
        self.seconds, self.cpu = time.monotonic() - begin, usage.ru_utime + usage.ru_stime
        if latest and time.monotonic() > latest:
            self.failures.append(f"no end after {self.seconds / 60:.0f} minutes")
        elif self.tap:
            self.count_points(status)
        elif status:
            self.failures.append(f"status {status}")
        else:
            self.passed += 1

    def end(self):
        """End the command and its children."""
        if self.process and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGTERM)

    def count_points(self, status):
        """Count the TAP points of the log. A point that closes a subtest (indented points before it) counts only if it reports a
        failure that no point of the subtest reports."""
        planned, inner, inner_failed, program, why, whole = 0, 0, 0, "", [], True
        for line in self.log.read_text(errors="replace").splitlines():
            plan, point = PLAN.match(line), POINT.match(line)
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
        if planned > 0:
            self.failures.append(f"{planned} planned points never reported")
        if status and not self.failures:
            self.failures.append(f"status {status}")
        if whole and not self.passed and not self.failures:
            self.failures.append("no point reported")


def read_table(name, logs):
    """Return the steps of vm/NAME. {a,b} in a NAME field expands to a step per choice; @1, @2, ... name the choices in the command."""
    steps = []
    for line in (TOP / "vm" / name).read_text().replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|", 2)]
        head = HEAD.fullmatch(fields[0])
        if len(fields) != 3 or not head:
            die(f"vm/{name}: not `step|tap[+|!] [MINUTES] [PATH...] | name | command`: {line}")
        _, title, command = fields
        choices = [group.split(",") for group in re.findall(r"\{([^}]*)\}", title)]
        pieces = re.split(r"\{[^}]*\}", title)
        for chosen in itertools.product(*choices):
            full, text = pieces[0], command
            for number, (choice, piece) in enumerate(zip(chosen, pieces[1:], strict=True), 1):
                full += choice + piece
                text = text.replace(f"@{number}", choice)
            steps.append(Step(head, full, text, name == "checks-debug", logs))
    return steps


def changed_files():
    """Return the files that changed since FERMATA_BASE, in the last COMMITS commits, or in all commits of a shallow clone."""

    def git(*args):
        command = ["git", "-c", "safe.directory=*", *args]
        return subprocess.run(command, cwd=TOP, capture_output=True, check=True, text=True).stdout.splitlines()

    try:
        base = os.environ.get("FERMATA_BASE") or git("rev-list", "--first-parent", f"--max-count={COMMITS + 1}", "HEAD")[-1]
        return git("diff", "--name-only", base)
    except subprocess.CalledProcessError as error:
        say(f"git cannot list the changed files, so the order is that of the tables: {error.stderr.strip()}")
        return []


def by_changes(steps, changed):
    """Sort steps by the number of changed files that can break them; the step that makes the debug kernel comes before all others on
    it."""

    def breaks(path, file):
        return file == path or file.startswith(f"{path}/") or fnmatch.fnmatch(file, path)

    def affected(step):
        return sum(any(breaks(path, file) for path in step.paths) for file in changed)

    making = next((step for step in steps if step.debug), None)
    order = sorted((step for step in steps if step is not making), key=affected, reverse=True)
    if making:
        order.insert(next(n for n, step in enumerate(order) if step.debug), making)
        making.minutes = 0 if kernel_named(DEBUG).ready() else making.minutes
    return order


class Budget:
    """Decides which steps fit into the time. Expected minutes are scaled by the ratio of the time that `make check` took to its
    expected time."""

    def __init__(self, steps, minutes):
        self.steps, self.end = steps, time.monotonic() + 60 * minutes
        self.making = next((step for step in steps if step.debug), None)
        times = json.loads((BUILD / "check/times.json").read_text()) if (BUILD / "check/times.json").exists() else []
        known = [step for step in times if step["expected"]]
        self.scale = sum(step["seconds"] for step in known) / sum(step["expected"] for step in known) if known else 1
        say(f"{minutes:.0f} minutes are left; a minute of vm/checks-all and vm/checks-debug takes {self.scale:.1f} here")

    def latest(self):
        return self.end + 60 * GRACE

    def why_not(self, step):
        """Return why a step is left out, or None."""
        minutes = step.minutes
        if step is self.making:
            minutes += self.steps[self.steps.index(step) + 1].minutes
        elif step.debug and (self.making.left_out or self.making.failures):
            return "there is no debug kernel"
        if step.judges and any(other.left_out for other in self.steps if other.debug == step.debug):
            return "not all that it judges was run"
        left = (self.end - time.monotonic()) / 60
        return f"expected to take {minutes * self.scale:.0f} minutes, {max(left, 0):.0f} are left" if minutes * self.scale > left else None


def parser():
    parser = argparse.ArgumentParser(prog="vm/check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="*", help="only steps whose names contain this (shell wildcards)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="also the steps of vm/checks-all")
    which.add_argument("--debug", action="store_true", help="the steps of vm/checks-debug, on the debug kernel")
    which.add_argument(
        "--rest", type=float, metavar="MINUTES",
        help="run the steps that make check leaves out, on stock kernels and on the debug kernel, for MINUTES after make check; steps"
        " that the last commits can break come first (since the commit FERMATA_BASE; default: the last 30 commits)",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the steps and their commands")
    return parser


def main():
    args = parser().parse_args()
    if args.rest is not None and args.pattern:
        parser().error("--rest takes no pattern")
    # Exit at once: the namespace ends with this process, and so do all processes in it.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    tables, folder = ["checks"], "check"
    if args.all:
        tables, folder = ["checks", "checks-all"], "check-all"
    elif args.debug:
        tables, folder = ["checks-debug"], "check-debug"
    elif args.rest is not None:
        tables, folder = ["checks-debug", "checks-all"], "check-rest"
    logs = BUILD / folder
    steps = [step for table in tables for step in read_table(table, logs)]
    if args.rest is not None:
        steps = by_changes(steps, changed_files())
    steps.sort(key=lambda step: step.judges)
    if args.pattern:
        steps = [s for s in steps if any(fnmatch.fnmatch(s.name, f"*{p}*") for p in args.pattern)]
        steps or die(f"no such step in vm/{' and vm/'.join(tables)}: vm/check {'--all ' if args.all else ''}--list has them")
    if args.list:
        for step in steps:
            print(f"{step.name}\n    {step.command}")
        return
    for series in pins():
        kernel = kernel_named(series)
        os.environ[f"KERNEL_{series.replace('.', '_')}"] = str(kernel.dir)
        if args.pattern:
            kernel.ensure()
    shutil.rmtree(logs, ignore_errors=True)
    results = logs / "results"
    results.mkdir(parents=True)
    os.environ["FERMATA_RESULTS"] = str(results)
    # A machine that boots and tests keeps less than one processor busy, except on the debug kernel.
    width = min(JOBS if args.debug else JOBS + 1, 4)
    run_all(steps, logs, width, Budget(steps, args.rest) if args.rest is not None else None)


def run_steps(steps, width, budget):
    """Run steps in their order, up to `width` at a time if they may run beside others. Yield each when it is done or left out."""
    running = {}

    def done():
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            future.result()
            yield running.pop(future)

    with ThreadPoolExecutor(width) as pool:
        try:
            for step in steps:
                most = (JOBS if step.debug else width) if step.beside else 1
                while len(running) >= most or not all(other.beside for other in running.values()):
                    yield from done()
                step.left_out = budget and budget.why_not(step)
                if step.left_out:
                    yield step
                    continue
                if sys.stdout.isatty():
                    print(f"{step.name} ...", end="\r", flush=True)
                running[pool.submit(step.run, budget and budget.latest())] = step
            while running:
                yield from done()
        except KeyboardInterrupt:
            for step in running.values():
                step.end()
            die("interrupted")


def print_result(step, place):
    """Print the result of a step, and the relevant part of the log of a failure."""
    if step.left_out:
        print(f"[{place}] {step.name}: left out, {step.left_out}", flush=True)
        return
    result = "FAILED" if step.failures else "ok"
    counts = f" {step.passed} passed" if step.tap else ""
    counts += f", {step.skipped} skipped" if step.skipped else ""
    print(f"[{place}] {step.name}: {result}{counts} ({step.seconds:.0f} s, {step.cpu:.0f} s of CPU)", flush=True)
    if step.failures:
        for failure in step.failures[:20]:
            print(f"    {failure}")
        for line in step.log.read_text(errors="replace").splitlines()[-25:]:
            print(f"    | {line}")
        print(f"    log: {str(step.log).removeprefix(f'{TOP}/')}", flush=True)


def run_all(steps, logs, width, budget):
    started = time.monotonic()
    for number, step in enumerate(run_steps(steps, width, budget), 1):
        print_result(step, f"{number}/{len(steps)}")
    passed = sum(step.passed for step in steps)
    failed = sum(len(step.failures) for step in steps)
    ran = [step for step in steps if not step.left_out]
    times = [
        {"name": step.name, "seconds": round(step.seconds, 1), "cpu": round(step.cpu, 1), "expected": 60 * step.minutes} for step in ran
    ]
    (logs / "times.json").write_text(json.dumps(times, indent=1) + "\n")
    took = f"{time.monotonic() - started:.0f} s, {sum(step.cpu for step in ran):.0f} s of CPU"
    say(f"{len(ran)} steps in {took}, logs in {str(logs).removeprefix(f'{TOP}/')}/")
    if len(ran) < len(steps):
        say(f"{len(steps) - len(ran)} steps left out")
    for step in ran:
        for failure in step.failures:
            print(f"failed: {step.name}: {failure}")
    summary = f"{passed} passed, {failed} failed"
    (logs / "summary").write_text(summary + "\n")
    print(summary, flush=True)
    sys.exit(1 if failed or not (passed or budget) else 0)


if __name__ == "__main__":
    main()
