# SPDX-License-Identifier: GPL-2.0
"""make demo: boot with an IOMMU, run fermata-demo in the guest, keep its report in build/reports/."""

import shutil
import sys

from . import boot
from .common import BUILD, say

# What the demo boots and runs.
OPTIONS = ["--name", "demo", "--iommu", "intel", "--card", "profile=fermata,slots=linkedlist+membench+sha256"]
OPTIONS += ["--with-image", "--timeout", "300"]
# The guest cannot know whether there is a terminal to redraw.
COMMAND = ["fermata-demo", *(["--live"] if sys.stdout.isatty() else [])]


def main():
    options = boot.parse([*OPTIONS, *sys.argv[1:], "--", *COMMAND])
    status = boot.run(options)
    reports = BUILD / "reports"
    reports.mkdir(exist_ok=True)
    for file in (BUILD / "vm/demo/files").glob("*.json"):
        shutil.copy(file, reports / file.name)
        say(f"report: build/reports/{file.name}")
    sys.exit(status)


if __name__ == "__main__":
    main()
