# SPDX-License-Identifier: GPL-2.0
"""Test that Debian's htop shows the tenants of a card.

Two tenants share a slot, a third tenant has a slot of its own, and a fourth process uses no card. htop runs in the Debian system of
the machine, on the terminal in memory of tools/screen. This program judges the screens by the fdinfo files of before and after.
"""

import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from .common import BUILD, TOP, Points

NAME = "htop"
OPTIONS = ["--name", NAME, "--timeout", "600", "--iommu", "intel", "--debian", "--card", "profile=irq,slots=counter_up+counter_down"]
# For htop: its meter of GPUs as text, and the columns of a process.
SETTINGS = """\
htop_version=3.4.1
config_reader_min_version=3
header_layout=one_100
column_meters_0=GPU
column_meter_modes_0=2
screen:Main=PID GPU_TIME GPU_PERCENT Command
.sort_key=PID
.sort_direction=1
"""
# A screen counts if two successive readings show the same screen, because htop may be drawing during a reading. The machine continues
# until each tenant was shown twice with each of four times, or for 100 seconds.
SCRIPT = """\
tenant() { fermatactl run "$1" --count 1000000000000000 --set timeslice=1ms --set preempt-timeout=10s >/dev/null 2>&1 & }
tenant counter_up; tenants=$!
tenant counter_up; tenants="$tenants $!"
tenant counter_down; tenants="$tenants $!"
sleep 10000 & idle=$!
until [ "$(fermatactl list | grep -c 'fermatactl run')" = 3 ]; do sleep 0.1; done
fdinfo() { for pid in $tenants; do grep -h ^drm- /proc/$pid/fdinfo/* >/report/$1-$pid; done; }
enough() {
	awk -v pids="$tenants" 'seen[$1, $2]++ == 1 { times[$1]++ }
		END { split(pids, pid); for (i in pid) if (times[pid[i]] < 4) exit 1 }' /report/screens
}
echo "$tenants $idle" >/report/pids
fdinfo before
: >/report/screens
{
	echo "wait counter_up:"
	echo "wait counter_down:"
	echo "wait F10Quit"
	tries=0
	until enough || [ $((tries += 1)) -gt 400 ]; do
		echo show
		sleep 0.25
	done
	echo "keys q"
	echo end
} | fermata-screen --size 120x24 -- debian env HTOPRC=/machine/htoprc htop --delay 10 --pid "$(tr ' ' , </report/pids)" >/report/screens
status=$?
fdinfo after
kill $tenants $idle
exit $status
"""
ENGINES = ["counter_up", "counter_up", "counter_down"]
UNITS = {"ns": 1, "ms": 10**6, "s": 10**9, None: 10**9}


def nanoseconds(text):
    """Return a time that htop shows: 12345ns, 1.2345ms, 1.23456s or 1:23.456."""
    minutes, number, unit = re.fullmatch(r"(?:(\d+):)?([\d.]+)(ns|ms|s)?", text).groups()
    return int(minutes or 0) * 60 * 10**9 + round(float(number) * UNITS[unit])


class Screen:
    """What a screen shows: `usage` in % of all GPUs and of each engine, `times` in ns and `percent` by process."""

    def __init__(self, text):
        meter, *lines = text.splitlines()
        self.usage = {engine: float(usage) for engine, usage in re.findall(r"([\w-]+): *([\d.]+)%", meter)}
        rows = [line.split() for line in lines]
        rows = [row for row in rows if row and row[0].isdigit()]
        self.times = {int(row[0]): nanoseconds(row[1]) for row in rows}
        self.percent = {int(row[0]): float(row[2]) for row in rows}


class Run:
    """The files that the machine left."""

    def __init__(self, folder):
        self.folder = folder
        *self.tenants, self.idle = map(int, (folder / "pids").read_text().split())
        _, *texts = re.split(r"^  (?=GPU:)", (folder / "screens").read_text(), flags=re.MULTILINE)
        texts = [text.strip() for text in texts]
        settled = [text for text, again in itertools.pairwise(texts) if text == again]
        self.screens = [Screen(text) for text, _ in itertools.groupby(settled)]

    def times(self, pid):
        return [screen.times[pid] for screen in self.screens]

    def time_on(self, engine, when, pid):
        """Return the time on the engine by the driver."""
        text = (self.folder / f"{when}-{pid}").read_text()
        [time] = re.findall(rf"^drm-engine-{engine}:\t(\d+) ns$", text, flags=re.MULTILINE)
        return int(time)


def times_grow(run):
    for pid in run.tenants:
        times = run.times(pid)
        assert len(set(times)) >= 4 and times == sorted(times), (pid, times)


def times_are_the_drivers(run):
    for engine, pid in zip(ENGINES, run.tenants, strict=True):
        before, after = run.time_on(engine, "before", pid), run.time_on(engine, "after", pid)
        # htop truncates times.
        assert before - 10**6 < min(run.times(pid)) and max(run.times(pid)) <= after, (before, run.times(pid), after)


def percentages_are_shown(run):
    for pid in run.tenants:
        assert max(screen.percent[pid] for screen in run.screens) > 0, pid


def others_have_no_time(run):
    assert set(run.times(run.idle)) == {0}, run.times(run.idle)
    assert {screen.percent[run.idle] for screen in run.screens} == {0}


def engines_are_shown(run):
    shown = {"GPU", *ENGINES}
    assert all(screen.usage.keys() == shown for screen in run.screens), [screen.usage for screen in run.screens]
    for name in shown:
        assert max(screen.usage[name] for screen in run.screens) > 0, name


JUDGED = {
    "GPU_TIME of each tenant grows": times_grow,
    "GPU_TIME is the time on the engine by fdinfo": times_are_the_drivers,
    "GPU% of each tenant": percentages_are_shown,
    "a process without a card has neither": others_have_no_time,
    "the GPU meter has the engines by their names": engines_are_shown,
}


def main():
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "htoprc"
        settings.write_text(SETTINGS)
        command = [sys.executable, "-m", "fermatavm.boot", *OPTIONS, "--add", f"{settings}:htoprc", *sys.argv[1:], "--", "sh", "-c", SCRIPT]
        done = subprocess.run(command, cwd=TOP)
    points = Points()
    points.judge(JUDGED, lambda: Run(BUILD / "vm" / NAME / "files"))
    points.point(done.returncode == 0, "the machine, the card and the kernel are content")
    points.end()


if __name__ == "__main__":
    main()
