# SPDX-License-Identifier: GPL-2.0
"""Paths, messages, locks, running of commands, reports and TAP."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

# /fermata in the build root.
TOP = Path(__file__).resolve().parents[2]
CACHE = Path("/cache")
BUILD = TOP / "build"
JOBS = int(os.environ.get("FERMATA_JOBS") or os.cpu_count() or 1)


def say(text):
    print(f"fermata: {text}", file=sys.stderr, flush=True)


def die(text):
    raise SystemExit(f"fermata: {text}")


def need_space(gib, where=CACHE):
    free = shutil.disk_usage(where).free >> 30
    if free < gib:
        die(f"no space: the cache folder needs {gib} GiB free and has {free}; free some, or set FERMATA_CACHE")


# Seconds between two signs of life on a terminal.
ALIVE = 3


def show_alive(since):
    """Show on a terminal for how many seconds something has run."""
    if sys.stderr.isatty():
        print(f"\rfermata:   {time.monotonic() - since:.0f} s \r", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def working(what, after=0.0, counter=True):
    """Say what is being done, if it takes longer than `after` seconds; a counter of seconds then runs on a terminal."""
    since, done = time.monotonic(), threading.Event()

    def watch():
        if done.wait(after):
            return
        say(what)
        while not done.wait(ALIVE):
            if counter:
                show_alive(since)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def locked(path):
    """Hold an exclusive lock, since clones share a cache and runs share a checkout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run ({path.name})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(cmd, log=None, check=True, **kwargs):
    """Run a command. With a log, the output goes to the log, and the end of the log is shown if the command fails."""
    cmd = [str(c) for c in cmd]
    if log is None:
        return subprocess.run(cmd, check=check, **kwargs)
    with open(log, "ab") as out:
        out.write(("+ " + " ".join(cmd) + "\n").encode())
        out.flush()
        done = subprocess.run(cmd, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **kwargs)
    if check and done.returncode:
        sys.stderr.write("".join(Path(log).read_text(errors="replace").splitlines(True)[-25:]))
        die(f"{cmd[0]} failed ({done.returncode}): see {host_path(log)}")
    return done


def host_path(path):
    """Return the path as seen from outside the build root."""
    path = str(path)
    if path.startswith(f"{TOP}/"):
        return path.removeprefix(f"{TOP}/")
    return path.replace("/cache/", "FERMATA_CACHE/", 1) if path.startswith("/cache/") else path


def write_report(name, report):
    """Write a report to build/reports/NAME.json."""
    path = BUILD / f"reports/{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    say(f"report: {host_path(path)}")


def keep_reports(files):
    """Copy files that a machine left to build/reports/."""
    (BUILD / "reports").mkdir(exist_ok=True)
    for file in files:
        copy = shutil.copy(file, BUILD / "reports")
        say(f"report: {host_path(copy)}")


class Points:
    """Prints the points of a TAP stream as they are produced."""

    def __init__(self, count=None):
        self.number, self.failed, self.planned = 0, 0, count is not None
        print("TAP version 13" + (f"\n1..{count}" if self.planned else ""))

    def point(self, good, what):
        self.number += 1
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.number} {what}", flush=True)

    def judge(self, judges, subject):
        """Print a point for each judge: a function of what `subject()` returns, which raises an error if the point fails."""
        for what, judge in judges.items():
            try:
                judge(subject())
            except (AssertionError, AttributeError, OSError, ValueError, KeyError) as error:
                print(f"# {type(error).__name__}: {error}")
                self.point(False, what)
            else:
                self.point(True, what)

    def end(self):
        """Exit with the status of the stream."""
        if not self.planned:
            print(f"1..{self.number}")
        sys.exit(self.failed != 0)


class Timer:
    def __init__(self):
        self.start = time.monotonic()

    def __str__(self):
        return f"{time.monotonic() - self.start:.0f} s"
