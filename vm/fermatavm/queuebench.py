# SPDX-License-Identifier: GPL-2.0
"""make bench-queue: boot with an IOMMU and engines that take no time, post jobs and start jobs in the guest, keep the report."""

import shutil
import sys

from . import boot
from .common import BUILD, say

OPTIONS = ["--name", "bench-queue", "--iommu", "intel", "--release", "--timeout", "400"]
OPTIONS += ["--card", "profile=fermata,slots=sha256+queue,0.speed=0,1.speed=0"]


def main():
    status = boot.run(boot.parse([*OPTIONS, "--", "fermata-queue-bench", *sys.argv[1:]]))
    report = BUILD / "vm/bench-queue/files/queue.json"
    if report.exists():
        (BUILD / "reports").mkdir(exist_ok=True)
        shutil.copy(report, BUILD / "reports/queue.json")
        say("report: build/reports/queue.json")
    sys.exit(status)


if __name__ == "__main__":
    main()
