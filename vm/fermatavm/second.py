# SPDX-License-Identifier: GPL-2.0
"""Second runs of failed steps, and steps that are run again and again to find out how often they fail.

In CI a step that failed by time or by a missed point may run once more, alone on the machine, if it boots a machine. A step whose log has
a complaint of the kernel, a violation of the card's protocol or a wrong result never runs again, nor does a step that is deterministic
(builds, lints, documents, host tests, model checks, mutations). vm/second-runs lists the steps that needed a second run."""

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time

from .common import BUILD, TOP, host_path, say
from .trouble import TROUBLE

# Steps that needed a second run, with the date: STEP DATE REASON.
RECORD = TOP / "vm/second-runs"
# The most second runs in one run of CI; more failures that could run again are failures.
MOST = 3
# The last status of vm/boot's command if the time limit passed (see vm/boot).
TIMED_OUT = 124
# What a step's log has if something is wrong that a second run cannot excuse.
WRONG = re.compile(r"\b(wrong|differ(s|ent)?|violations?|corrupt(ed)?|lost|leak(s|ed)?)\b|the kernel complained|card \d+ ended with status", re.I)
# Lines in which these words describe what a point tests, count none of it, or are said of a machine that a test takes away.
FINE = re.compile(r"^\s*(not )?ok \d+|^fermata-vfio: the virtual machine is lost: |^# [\w.-]+$|\b(no|0) (violations?|leaks?|lost)\b|^fermata: report:")


def why_final(step):
    """Return why a failed step may not run again, or None."""
    if not step.boots:
        return "it boots no machine"
    for line in step.text().splitlines():
        if not FINE.search(line) and (TROUBLE.search(line) or WRONG.search(line)):
            return f"its log has: {line.strip()[:120]}"
    missed = any("not ok" in line for line in step.text().splitlines()) or any("never reported" in failure for failure in step.failures)
    if not (step.late or step.status == TIMED_OUT or (step.tap and missed)):
        return "it failed neither by time nor by a missed point"
    return None


class SecondRuns:
    """The second runs of a run of CI, which are counted in `used` across invocations of vm/check."""

    def __init__(self, logs, latest):
        self.logs, self.latest, self.used = logs, latest, BUILD / "second-runs.json"

    def names(self):
        return json.loads(self.used.read_text()) if self.used.exists() else []

    def why_not(self, step):
        """Return why a failed step is not to run again even if there is time, or None."""
        return why_final(step) or (f"{MOST} steps ran again already" if len(self.names()) >= MOST else None)

    def run(self, steps):
        """Run failed steps again. Yield each step that ran again."""
        for step in steps:
            if not step.failures:
                continue
            if reason := self.why_not(step):
                say(f"{step.name} does not run again: {reason}")
            elif self.latest and time.monotonic() + step.seconds > self.latest:
                say(f"{step.name} does not run again: no time is left for it")
            else:
                self.used.write_text(json.dumps([*self.names(), step.name]))
                run_again(step, self.logs, self.latest)
                yield step


def run_again(step, logs, latest):
    """Run a step once more, and keep the log of the first run as NAME.first.log."""
    shutil.move(step.log, logs / f"{step.name}.first.log")
    failures, seconds, cpu = step.failures, step.seconds, step.cpu
    step.reset()
    # vm/boot then keeps the folder of the first machine as build/vm/NAME.first.
    step.run(logs, latest, {"FERMATA_SECOND_RUN": "1"})
    step.first_failures = failures
    step.seconds, step.cpu = step.seconds + seconds, step.cpu + cpu


def line_for_record(step):
    """Return the line of vm/second-runs for a step that passed the second time."""
    return f"{step.name} {datetime.date.today()} {step.first_failures[0][:100]}"


def again(step, times, logs):
    """Run a step `times` times beside two busy loops; print how often it failed. Return the number of failures."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    failed = 0
    try:
        for number in range(1, times + 1):
            step.reset()
            step.run(logs)
            failed += bool(step.failures)
            kept = logs / f"{step.name}.{number}.log"
            os.replace(step.log, kept)
            what = f"failed ({step.failures[0][:100]})" if step.failures else "passed"
            print(f"{step.name}: run {number} of {times} {what}, {step.seconds:.0f} s, log: {host_path(kept)}", flush=True)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    print(f"{step.name}: failed {failed} of {times} times")
    return failed
