# SPDX-License-Identifier: GPL-2.0
"""The benchmarks that boot a machine with an IOMMU. Usage: python3 -m fermatavm.bench [run|latency|queue] [OPTION]...; options are
those of the same subcommand of fermata-bench.

run (make bench, the default): the guest visits all variants in turn; the report is made from the card's log. Violations of the card's
protocol fail the run only if the card was bound to fermata.ko. Meanwhile the host's steal time and load, and the CPU time of the guest
on the host, are recorded by the clock of the card's log.

latency (make bench-latency): latency-critical work arrives in the guest; the report is made from the card's log.

queue (make bench-queue): the guest posts jobs to a queue and starts jobs by calls, on engines that take no time; it makes the report.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from . import boot, guest, module
from .common import BUILD, TOP, keep_reports, run
from .kernel import kernel_named

KERNEL = "7.2"
OPTIONS = ["--release", "--kernel", KERNEL]
# Marks in the card's log are writes to registers of slot 1, beside the card's driver (iomem=relaxed). The engine of slot 0 makes one
# access per microsecond (tools/bench/src/visit.rs).
MARKED = ["--append", "iomem=relaxed", "--card", "profile=relay,slots=membench+linkedlist,0.speed=64"]
# The name identifies the threads of the guest's CPUs: the first boot on a host tries KVM in a separate machine.
NAME = "bench,debug-threads=on"
# The period of the host's samples; the guest waits for two of them after each visit (HOST_PERIOD in tools/bench/src/guest/mod.rs).
PERIOD = 0.02
# The guest's CPUs have a lower priority than the card, because a real device does not wait for CPUs.
NICE = 5


def guest_cpus():
    """Return the schedstat files of QEMU's threads that are CPUs of the guest."""
    found = []
    for comm in Path("/proc").glob("[0-9]*/task/*/comm"):
        try:
            if comm.read_text().startswith("CPU ") and NAME in comm.with_name("cmdline").read_text():
                found.append(comm.with_name("schedstat"))
        except OSError:
            continue  # the thread has ended
    return found


def give_way(threads):
    for thread in threads:
        os.setpriority(os.PRIO_PROCESS, int(thread.parent.name), NICE)
    return threads


def time_of(threads):
    """Return the CPU time of the threads in nanoseconds, 0 if there are none."""
    try:
        return sum(int(thread.read_text().split()[0]) for thread in threads)
    except OSError:
        return 0


class HostWatch(threading.Thread):
    """Writes the load of the host to a file, fifty times a second."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.done = path, threading.Event()

    def run(self):
        cpus = []
        with open(self.path, "w") as out:
            while not self.done.wait(PERIOD if cpus else 1):
                if not cpus and guest_cpus():
                    time.sleep(1)  # until all threads exist
                    cpus = give_way(guest_cpus())
                with open("/proc/stat") as stat:
                    times = [int(word) for word in stat.readline().split()[1:]]
                sample = {"t": time.monotonic_ns(), "steal": times[7], "all": sum(times[:8]), "load": os.getloadavg()[0]}
                out.write(json.dumps(sample | {"guest": time_of(cpus)}) + "\n")

    def stop(self):
        self.done.set()
        self.join()


def machine(name, *options):
    """Boot the machine `name` and run fermata-bench in it; return the status, and the folder of the machine's files."""
    status = boot.run(boot.parse([*OPTIONS, "--name", name, *options]))
    return status, BUILD / f"vm/{name}"


def report(*arguments):
    """Make a report on the host; return the status of fermata-bench."""
    return run([guest.MEASURED.programs / "fermata-bench", *arguments], check=False, cwd=TOP).returncode


def compare(arguments):
    bound = module.build_in(BUILD / f"bound-{KERNEL}", kernel_named(KERNEL).ensure(), TOP / "tools/bench/module", strict=True)
    watch = HostWatch(BUILD / "bench-host.jsonl")
    watch.start()
    # vfio-pci needs interrupt remapping. The report judges the violations: those of the drivers that fermata is compared with fail nothing.
    options = [*MARKED, "--iommu", "intel+intremap", "--allow-card", "--timeout", "1700", "--qemu=-name", f"--qemu={NAME}"]
    options += ["--add", f"{bound}/fermata_bound.ko:bound/fermata_bound.ko"]
    status, out = machine("bench", *options, "--", "fermata-bench", "run", *arguments)
    watch.stop()
    if not (out / "files/visits.json").exists():
        return status or 1
    wrong = report("report", out / "card0.log", out / "files/visits.json", BUILD / "bench-host.jsonl")
    return wrong or status


def latency(arguments):
    options = [*MARKED, "--iommu", "intel", "--timeout", "400"]
    status, out = machine("latency", *options, "--", "fermata-bench", "latency", *arguments)
    return status or report("latency-report", out / "card0.log")


def queue(arguments):
    options = ["--iommu", "intel", "--card", "profile=irq,slots=sha256+queue,0.speed=0,1.speed=0", "--timeout", "400"]
    status, out = machine("bench-queue", *options, "--", "fermata-bench", "queue", *arguments)
    if (out / "files/queue.json").exists():
        keep_reports([out / "files/queue.json"])
    return status


BENCHMARKS = {"run": compare, "latency": latency, "queue": queue}


def main():
    name, arguments = sys.argv[1:2], sys.argv[2:]
    if not name or name[0] not in BENCHMARKS:
        name, arguments = ["run"], sys.argv[1:]
    sys.exit(BENCHMARKS[name[0]](arguments))


if __name__ == "__main__":
    main()
