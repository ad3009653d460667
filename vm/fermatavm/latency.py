# SPDX-License-Identifier: GPL-2.0
"""make bench-latency: boot with an IOMMU, let latency-critical work arrive in the guest, read the card's log."""

import sys

from . import boot, guest
from .common import BUILD, TOP, run

# The engines where tools/latency/src/marker.rs has them.
OPTIONS = ["--name", "latency", "--iommu", "intel", "--card", "profile=fermata,slots=linkedlist+membench", "--release", "--timeout", "400"]


def main():
    command = ["fermata-latency", "run", *sys.argv[1:]]
    status = boot.run(boot.parse([*OPTIONS, "--", *command]))
    if status:
        sys.exit(status)
    report = [guest.MEASURED.programs / "fermata-latency", "report", BUILD / "vm/latency/card0.log"]
    sys.exit(run(report, check=False, cwd=TOP).returncode)


if __name__ == "__main__":
    main()
