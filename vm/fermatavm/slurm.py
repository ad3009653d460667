# SPDX-License-Identifier: GPL-2.0
"""Jobs of Slurm share the cards of two nodes (docs/deploy/slurm.md), in a machine with three cards and Debian with Slurm, MariaDB and CRIU.

python3 -m fermatavm.slurm test|demo [OPTION of vm/boot]... runs packaging/tests/slurm, which prints TAP, or packaging/tests/slurm-demo.
build/criu must be up to date (make criu-plugin).
"""

import sys

from . import boot, guest
from .common import die

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge", "criu", "libcap2-bin", "logrotate"]
# The database of slurmdbd, which ends at once with the libmariadb3 of trixie, 11.8.9 ("Number of columns in result").
PACKAGES += ["slurmdbd", "mariadb-server-core", "mariadb-client-core", "libmariadb3/bookworm"]
CARD = ["--card", "profile=irq,slots=sha256+membench+counter_up,0.speed=1,1.speed=1,2.speed=1,imports=1"]
OPTIONS = ["--debian", "--layer", f"slurm={','.join(PACKAGES)}", "--memory", "2G", "--iommu", "intel", "--timeout", "2400"]
OPTIONS += [*CARD, *CARD, *CARD, "--params", "preempt_timeout_us=10000000"]
SCRIPTS = {"test": "slurm", "demo": "slurm-demo"}


def main(what, *options):
    script = SCRIPTS.get(what) or die(f"{what}: give one of {', '.join(SCRIPTS)}")
    if what == "demo":
        # A test is skipped without the packages, a demo fails.
        try:
            guest.layer("slurm", PACKAGES)
        except guest.Unreachable as error:
            die(error)
    command = ["debian", "sh", f"/fermata/packaging/tests/{script}"]
    return boot.run(boot.parse([*OPTIONS, "--name", script, *options, "--", *command]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
