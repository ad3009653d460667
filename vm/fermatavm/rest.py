# SPDX-License-Identifier: GPL-2.0
"""Which steps of the longer lists CI runs after `make check`: those that the changed files can break, as many as fit into the time."""

import fnmatch
import json
import os
import subprocess
import time

from .common import BUILD, TOP, say
from .kernel import DEBUG, kernel_named

# Without FERMATA_BASE, the change is what was committed in so many hours before the last commit: a session's work.
HOURS = 4
# A change of these runs a step on the debug kernel first, which takes at most so many minutes.
MODULE = ("rust", "uapi", "include")
DEBUG_FIRST_MINUTES = 7
# Minutes after the end of the time by which a late step must have ended.
GRACE = 3


def below(path, file):
    return file == path or file.startswith(f"{path}/") or fnmatch.fnmatch(file, path)


def changed_files():
    """Return the files that the last change changed: since FERMATA_BASE, or in HOURS hours before the last commit."""

    def git(*args):
        command = ["git", "-c", "safe.directory=*", *args]
        return subprocess.run(command, cwd=TOP, capture_output=True, check=True, text=True).stdout.split()

    try:
        base = os.environ.get("FERMATA_BASE")
        if not base:
            [last] = git("log", "-1", "--format=%ct")
            older = git("rev-list", "-1", f"--before={int(last) - 3600 * HOURS}", "HEAD")
            base = older[0] if older else git("rev-list", "--max-parents=0", "HEAD")[-1]
        return git("diff", "--name-only", base)
    except subprocess.CalledProcessError as error:
        say(f"git cannot list the changed files, so no step of the longer lists runs: {error.stderr.strip()}")
        return []


def ordered(steps, changed):
    """Return the steps in the order of the number of changed files that can break each, and say of steps that none can break that they
    are left out. The step that makes the debug kernel comes before all others on that kernel; if the module changed, that step and one
    short step on the debug kernel come first of all."""

    def affected(step):
        return sum(any(below(path, file) for path in step.paths) for file in changed)

    making = next(step for step in steps if step.name == "debug-kernel")
    making.minutes = 0 if kernel_named(DEBUG).ready() else making.minutes
    others = sorted((step for step in steps if step is not making), key=affected, reverse=True)
    for step in others:
        if not affected(step) and not step.judges:
            step.left_out = "no changed file can break them"
    first = None
    if any(below(path, file) for path in MODULE for file in changed):
        first = next((step for step in others if step.debug and step.tap and 0 < step.minutes <= DEBUG_FIRST_MINUTES and affected(step)), None)
    order = ([first] if first else []) + [step for step in others if step is not first]
    needs = [number for number, step in enumerate(order) if step.debug and not step.left_out and not step.judges]
    if not needs:
        making.left_out = "no step on the debug kernel runs"
    order.insert(needs[0] if needs else len(order), making)
    return order


class Budget:
    """Decides which steps fit into the time. Expected minutes are scaled by the ratio of the time that `make check` took to its
    expected time."""

    def __init__(self, steps, minutes):
        self.steps, self.end = steps, time.monotonic() + 60 * minutes
        self.making = next((step for step in steps if step.name == "debug-kernel"), None)
        times = BUILD / "check/times.json"
        known = [step for step in json.loads(times.read_text()) if step["expected"]] if times.exists() else []
        self.scale = sum(step["seconds"] for step in known) / sum(step["expected"] for step in known) if known else 1
        say(f"{minutes:.0f} minutes are left; a minute of vm/checks-all and vm/checks-debug takes {self.scale:.1f} here")

    def reserve(self, seconds):
        """Keep time for a second run of a step that took so long the first time."""
        self.end -= seconds

    def latest(self):
        return self.end + 60 * GRACE

    def why_not(self, step):
        """Return why a step is left out, or None."""
        if step.left_out:
            return step.left_out
        minutes = step.minutes
        if step is self.making:
            minutes += self.steps[self.steps.index(step) + 1].minutes
        elif step.debug and self.making and (self.making.left_out or self.making.failures):
            return "there is no debug kernel for them"
        if step.judges and any(other.left_out for other in self.steps if other.debug == step.debug):
            return "not all steps that they judge ran"
        return "no time is left for them" if minutes * self.scale > (self.end - time.monotonic()) / 60 else None
