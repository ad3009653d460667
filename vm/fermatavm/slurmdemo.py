# SPDX-License-Identifier: GPL-2.0
"""make slurm-demo: six jobs of two users share the cards of two nodes of Slurm (docs/slurm.md).

Boots a machine with two cards and the Debian system with Slurm and CRIU, in which packaging/tests/slurm-demo runs. One node is drained, and a
table tells who got what. Usage: python3 -m fermatavm.slurmdemo [OPTION of vm/boot]...
"""

import subprocess
import sys

from . import layer
from .common import TOP

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge", "criu", "libcap2-bin"]
CARD = ["--card", "profile=fermata,slots=counter_up,0.speed=1"]
OPTIONS = ["--debian", "--memory", "2G", "--iommu", "intel", "--params", "preempt_timeout_us=10000000", "--name", "slurm-demo", "--timeout", "900"]


def main():
    packages = layer.make("slurm", PACKAGES)
    command = [sys.executable, "-m", "fermatavm.boot", "--layer", str(packages), *OPTIONS, *CARD, *CARD, *sys.argv[1:]]
    return subprocess.run([*command, "--", "debian", "sh", "/fermata/packaging/tests/slurm-demo"], cwd=TOP).returncode


if __name__ == "__main__":
    sys.exit(main())
