# SPDX-License-Identifier: GPL-2.0
"""Run checks and count them; the last line is `N passed, N failed`.

The steps are those of vm/checks; with --all also those of vm/checks-all; with --debug those of vm/checks-debug. Logs are in
build/check/ (build/check-all/, build/check-debug/, build/check-rest/, build/check-parts/), times in times.json there.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from .common import ALIVE, BUILD, JOBS, TOP, die, host_path, locked, say
from .kernel import kernel_named, pins
from .rest import Budget, changed_files, ordered
from .second import RECORD, SecondRuns, again, line_for_record
from .steps import TABLES, chosen, longest_first, read_table

# Minutes that second runs may take after the time of all other steps: CI ends before minute 65.
SECOND_MINUTES = 4
# The step that builds the programs of the machines. The steps after it use these programs (guest.py).
PROGRAMS = "programs"


def part(text):
    """Parse K/N."""
    number, _, parts = text.partition("/")
    if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts) <= 20):
        raise argparse.ArgumentTypeError("write K/N, as 2/5, with 1 <= K <= N <= 20")
    return int(number), int(parts)


def parser():
    parser = argparse.ArgumentParser(prog="vm/check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="*", help="only this step, or the steps with this in their name or title (shell wildcards)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="also the steps of vm/checks-all")
    which.add_argument("--debug", action="store_true", help="the steps of vm/checks-debug, on the debug kernel")
    which.add_argument(
        "--rest", type=float, metavar="MINUTES",
        help="for MINUTES after make check, run the steps of vm/checks-all and vm/checks-debug that the last change can break, those with"
        " the most changed files first (change: since the commit FERMATA_BASE, or the last 4 hours' commits)",
    )  # fmt: skip
    parser.add_argument("--part", type=part, metavar="K/N", help="with --all: part K of N parts of all three tables, N runs in all")
    parser.add_argument("--again", type=int, metavar="N", help="run one step N times beside two busy loops, and count its failures")
    parser.add_argument("--list", action="store_true", help="list the steps: name, title")
    return parser


def parse():
    args = parser().parse_args()
    if args.rest is not None and args.step:
        parser().error("--rest takes no step")
    if args.part and (not args.all or args.step):
        parser().error("--part goes with --all, and takes no step")
    if args.again is not None and (len(args.step) != 1 or args.again < 1):
        parser().error("--again N takes N of 1 or more, and one step")
    return args


def select(args):
    """Return the steps that the arguments choose, and the name of the folder of their logs."""
    tables, folder = ["checks"], "check"
    if args.again is not None:
        tables, folder = TABLES, "check-again"
    elif args.part:
        tables, folder = TABLES, "check-parts"
    elif args.all:
        tables, folder = ["checks", "checks-all"], "check-all"
    elif args.debug:
        tables, folder = ["checks-debug"], "check-debug"
    elif args.rest is not None:
        tables, folder = ["checks-debug", "checks-all"], "check-rest"
    steps = [step for table in tables for step in read_table(table)]
    if args.rest is not None:
        steps = ordered(steps, changed_files())
    steps.sort(key=lambda step: step.judges)
    if args.part:
        # The results of all parts are judged with the last one.
        number, parts = args.part
        judges = [step for step in steps if step.judges and number == parts]
        steps = longest_first([step for step in steps if not step.judges], parts)[number - 1] + judges
    return chosen(steps, args.step) if args.step else steps, folder


def main():
    args = parse()
    # Exit at once: the namespace ends with this process, and so do all processes in it.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    steps, folder = select(args)
    if args.list:
        width = max(len(step.name) for step in steps)
        print("\n".join(f"{step.name:{width}}  {step.title}" for step in steps))
        return
    for series in pins():
        kernel = kernel_named(series)
        os.environ[f"KERNEL_{series.replace('.', '_')}"] = str(kernel.dir)
        if args.step:
            kernel.ensure()
    with locked(BUILD / f".{folder}.lock"):
        run(steps, BUILD / folder, args)


def run(steps, logs, args):
    if not args.part or args.part[0] == 1:
        shutil.rmtree(logs, ignore_errors=True)
    results = logs / "results"
    results.mkdir(parents=True, exist_ok=True)
    os.environ["FERMATA_RESULTS"] = str(results)
    if args.again is not None:
        len(steps) == 1 or die(f"--again runs one step, not {', '.join(step.name for step in steps)}")
        sys.exit(again(steps[0], args.again, logs) != 0)
    Run(steps, logs, args).run()


class Run:
    """A run of steps: all of them once, failed ones again if this is CI, then the steps that judge the results."""

    def __init__(self, steps, logs, args):
        self.steps, self.logs, self.number, self.started = steps, logs, 0, 0
        # A machine that boots and tests keeps less than one processor busy, except on the debug kernel.
        self.width = min(JOBS if args.debug else JOBS + 1, 4)
        self.budget = Budget(steps, args.rest) if args.rest is not None else None
        latest = self.budget and self.budget.latest() + 60 * SECOND_MINUTES
        self.second = SecondRuns(logs, latest) if os.environ.get("CI") == "true" else None
        # `make check` is what a run of CI begins with.
        if self.second and self.budget is None:
            self.second.used.unlink(missing_ok=True)

    def run(self):
        self.started = time.monotonic()
        say(f"{len(self.steps)} steps, each is shown when it ends; at first kernels and programs are built, for some minutes, once")
        judges = [step for step in self.steps if step.judges]
        others = [step for step in self.steps if not step.judges]
        for step in self.run_steps(others):
            self.print_result(step)
            if step.failures and self.second and self.budget and not self.second.why_not(step):
                self.budget.reserve(step.seconds)
        if self.second:
            for step in self.second.run([step for step in others if not step.left_out]):
                self.print_result(step)
        for step in self.run_steps(judges):
            self.print_result(step)
        self.close(time.monotonic() - self.started)

    def run_steps(self, steps):
        """Run steps in their order, up to `width` at a time if they may run beside others. Yield each when it is done or left out."""
        running = {}

        def done():
            while not (ended := wait(running, ALIVE, FIRST_COMPLETED).done):
                self.show_running(running.values())
            for future in ended:
                future.result()
                step = running.pop(future)
                if step.name == PROGRAMS and not step.failures:
                    os.environ["FERMATA_BUILT"] = str(TOP)
                yield step

        with ThreadPoolExecutor(self.width) as pool:
            try:
                for step in steps:
                    most = (JOBS if step.debug else self.width) if step.beside else 1
                    while len(running) >= most or not all(other.beside for other in running.values()):
                        yield from done()
                    step.left_out = self.budget and self.budget.why_not(step)
                    if step.left_out:
                        continue
                    running[pool.submit(step.run, self.logs, self.budget and self.budget.latest())] = step
                while running:
                    yield from done()
            except KeyboardInterrupt:
                for step in running.values():
                    step.end()
                die("interrupted")

    def show_running(self, steps):
        """Show on a terminal which steps run, and for how long this has taken."""
        if sys.stdout.isatty():
            names = ", ".join(step.name for step in steps)
            print(f"\r\033[K{time.monotonic() - self.started:.0f} s: {names} ..."[: shutil.get_terminal_size().columns], end="\r", flush=True)

    def print_result(self, step):
        """Print the result of a step, and the relevant part of the log of a failure."""
        self.number += not step.first_failures
        result = "FAILED" if step.failures else "failed, then passed" if step.first_failures else "ok"
        counts = f" {step.passed} passed" if step.tap else ""
        counts += f", {step.skipped} skipped" if step.skipped else ""
        clear = "\033[K" if sys.stdout.isatty() else ""
        place = f"{clear}[{self.number}/{len(self.steps)}]"
        print(f"{place} {step.name}: {result}{counts} ({step.seconds:.0f} s, {step.cpu:.0f} s of CPU)", flush=True)
        for failure in step.first_failures[:20]:
            print(f"    the first time: {failure}")
        if step.failures:
            print(f"    {step.title}")
            for failure in step.failures[:20]:
                print(f"    {failure}")
            for line in step.text().splitlines()[-25:]:
                print(f"    | {line}")
        if step.failures or step.first_failures:
            print(f"    log: {host_path(step.log)}", flush=True)

    def close(self, seconds):
        """Print what ran, what did not, what ran again and what failed; write the summary and the times."""
        ran = [step for step in self.steps if not step.left_out]
        passed, failed = sum(step.passed for step in self.steps), sum(len(step.failures) for step in self.steps)
        times = [
            {"name": step.name, "seconds": round(step.seconds, 1), "cpu": round(step.cpu, 1), "expected": 60 * step.minutes} for step in ran
        ]
        (self.logs / "times.json").write_text(json.dumps(times, indent=1) + "\n")
        took = f"{seconds:.0f} s, {sum(step.cpu for step in ran):.0f} s of CPU"
        say(f"{len(ran)} steps in {took}, logs in {host_path(self.logs)}/")
        longest = sorted(ran, key=lambda step: -step.seconds)[:5]
        say(f"the longest: {', '.join(f'{step.name} {step.seconds:.0f} s' for step in longest)}")
        self.say_left_out()
        for step in ran:
            if step.first_failures and not step.failures:
                print(f"failed, then passed: {step.name}: {step.first_failures[0]}")
                print(f"    for {host_path(RECORD)}: {line_for_record(step)}")
        for step in ran:
            for failure in step.failures:
                print(f"failed: {step.name}: {failure}")
        summary = f"{passed} passed, {failed} failed"
        (self.logs / "summary").write_text(summary + "\n")
        print(summary, flush=True)
        sys.exit(1 if failed or not (passed or self.budget) else 0)

    def say_left_out(self):
        reasons = {}
        for step in self.steps:
            if step.left_out:
                reasons.setdefault(step.left_out, []).append(step.name)
        for reason, names in reasons.items():
            say(f"not run, {reason}: {', '.join(names)}")


if __name__ == "__main__":
    main()
