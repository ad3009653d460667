# SPDX-License-Identifier: GPL-2.0
"""make demo: boot with an IOMMU, run fermata-demo in the guest, keep its report in build/reports/, and what the driver did
meanwhile: a picture and a trace for Perfetto, in which the card's view stands below. It fails where the two views differ."""

import gzip
import shutil
import sys

from . import boot, guest
from .common import BUILD, TOP, run, say

# What the demo boots and runs.
OPTIONS = ["--name", "demo", "--iommu", "intel", "--card", "profile=fermata,slots=linkedlist+membench+sha256"]
OPTIONS += ["--with-image", "--timeout", "900"]
# The guest cannot know whether there is a terminal to redraw.
COMMAND = ["fermata-demo", *(["--live"] if sys.stdout.isatty() else [])]
RECORD = ["fermatactl", "trace", "--output", "/report/demo-trace.json", "--svg", "/report/demo.svg", "--text", "/tmp/demo-trace.txt", "--"]
# The text goes out of the machine in less.
PACK = 'status=0; "$@" || status=$?; gzip -c /tmp/demo-trace.txt >/report/demo-trace.txt.gz; exit $status'


def main():
    options = boot.parse([*OPTIONS, *sys.argv[1:], "--", "sh", "-c", PACK, "demo", *RECORD, *COMMAND])
    status = boot.run(options)
    reports = BUILD / "reports"
    reports.mkdir(exist_ok=True)
    files = BUILD / "vm/demo/files"
    for file in [*files.glob("*.json"), *files.glob("*.svg")]:
        shutil.copy(file, reports / file.name)
    status = status or lay_over(files, reports)
    for name in ("demo.json", "demo.svg", "demo-trace.json"):
        say(f"report: build/reports/{name}")
    sys.exit(status)


def lay_over(files, reports):
    """Holds the driver's trace against the card's log, and writes the trace for Perfetto anew with both."""
    text = files / "demo-trace.txt"
    text.write_bytes(gzip.decompress((files / "demo-trace.txt.gz").read_bytes()))
    compare = [guest.PROGRAMS / "fermata-timeline", BUILD / "vm/demo/card0.log", "--driver", text, "--trace", reports / "demo-trace.json"]
    return run(compare, check=False, cwd=TOP).returncode


if __name__ == "__main__":
    main()
