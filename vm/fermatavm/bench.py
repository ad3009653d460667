# SPDX-License-Identifier: GPL-2.0
"""make bench: boot with an IOMMU, let the guest visit all variants in turn, then make the report of the card's log. The report
judges violations that the card's checker found: those of other drivers than fermata.ko fail nothing.

Meanwhile the host's steal time and load, and the time that the guest's CPUs ran on it, are kept by the clock of the card's log.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from . import boot, guest, module
from .common import BUILD, TOP, run
from .kernel import kernel_named

KERNEL = "7.2"
# vfio-pci hands out interrupts only behind interrupt remapping; marks in the card's log are written beside its driver (iomem=relaxed).
OPTIONS = ["--release", "--kernel", KERNEL, "--name", "bench", "--iommu", "intel+intremap", "--append", "iomem=relaxed", "--timeout", "1700"]
# The engine in slot 0 makes one access a microsecond (tools/bench/src/work.rs); marks go to slot 1.
OPTIONS += ["--card", "profile=fermata,slots=membench+linkedlist,0.speed=64"]
# By name, so that the threads of the guest's CPUs are found: the first boot on a machine comes after one that tries KVM.
NAME = "bench,debug-threads=on"
OPTIONS += ["--qemu=-name", f"--qemu={NAME}"]
PERIOD = 0.02
# A device does not wait for the CPUs of its machine: on the host the card goes before them.
NICE = 5


def guest_cpus():
    """schedstat of each thread of QEMU that is a CPU of the guest."""
    found = []
    for comm in Path("/proc").glob("[0-9]*/task/*/comm"):
        try:
            if comm.read_text().startswith("CPU ") and NAME in comm.with_name("cmdline").read_text():
                found.append(comm.with_name("schedstat"))
        except OSError:
            continue  # it ended meanwhile
    return found


def give_way(threads):
    for thread in threads:
        os.setpriority(os.PRIO_PROCESS, int(thread.parent.name), NICE)
    return threads


def time_of(threads):
    """Nanoseconds that they ran; none when they are not there yet, or not any more."""
    try:
        return sum(int(thread.read_text().split()[0]) for thread in threads)
    except OSError:
        return 0


class HostWatch(threading.Thread):
    """Writes the host's times to a file, fifty times a second."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.done = path, threading.Event()

    def run(self):
        cpus = []
        with open(self.path, "w") as out:
            while not self.done.wait(PERIOD if cpus else 1):
                if not cpus and guest_cpus():
                    time.sleep(1)  # until all of them are there
                    cpus = give_way(guest_cpus())
                with open("/proc/stat") as stat:
                    times = [int(word) for word in stat.readline().split()[1:]]
                sample = {"t": time.monotonic_ns(), "steal": times[7], "all": sum(times[:8]), "load": os.getloadavg()[0]}
                out.write(json.dumps(sample | {"guest": time_of(cpus)}) + "\n")

    def stop(self):
        self.done.set()
        self.join()


def main():
    arguments = sys.argv[1:]
    bound = module.build_in(BUILD / f"bound-{KERNEL}", kernel_named(KERNEL).ensure(), TOP / "tools/bench/module", strict=True)
    watch = HostWatch(BUILD / "bench-host.jsonl")
    watch.start()
    add = ["--add", f"{bound}/fermata_bound.ko:bound/fermata_bound.ko"]
    status = boot.run(boot.parse([*OPTIONS, *add, "--", "fermata-bench", "run", *arguments]))
    watch.stop()
    out = BUILD / "vm/bench"
    if not (out / "files/visits.json").exists():
        sys.exit(status or 1)
    command = [guest.MEASURED.programs / "fermata-bench", "report", out / "card0.log", out / "files/visits.json", BUILD / "bench-host.jsonl"]
    wrong = run(command, check=False, cwd=TOP).returncode
    sys.exit(wrong or (0 if status == boot.CARD_FAILED and has_violations() else status))


def has_violations():
    """Whether the report says why the card was not content."""
    return bool(json.loads((BUILD / "reports/bench.json").read_text())["violations"])


if __name__ == "__main__":
    main()
