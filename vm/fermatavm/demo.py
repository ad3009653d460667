# SPDX-License-Identifier: GPL-2.0
"""make demo: boot with an IOMMU, run fermata-demo in the guest, keep its report in build/reports/, and what the driver did
meanwhile: a picture of all, one of some turns, and a trace for Perfetto, in which the card's view stands below. It fails
where the two views differ."""

import gzip
import shutil
import sys

from . import boot
from .common import BUILD, TOP, run, say

# What the demo boots and runs.
OPTIONS = ["--name", "demo", "--iommu", "intel", "--card", "profile=fermata,slots=linkedlist+membench+sha256"]
OPTIONS += ["--with-image", "--timeout", "900"]
# The guest cannot know whether there is a terminal to redraw.
COMMAND = ["fermata-demo", *(["--live"] if sys.stdout.isatty() else [])]
RECORD = ["fermatactl", "trace", "--output", "/report/demo-trace.json", "--svg", "/report/demo.svg", "--text", "/tmp/demo-trace.txt", "--"]
# What the picture of some turns has: 60 ms, a second after all tenants have begun.
TURNS = ["--from", "together-2000us+1000", "--to", "together-2000us+1060"]
TURNS += ["--title", "Eight programs share the three slots of a card: 60 ms of make demo, as the driver saw it"]
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
    status = status or lay_over(boot.profile_of(options).programs, files, reports)
    for name in ("demo.json", "demo.svg", "demo-turns.svg", "demo-trace.json"):
        say(f"report: build/reports/{name}")
    sys.exit(status)


def lay_over(programs, files, reports):
    """Holds the driver's trace against the card's log, draws some turns, and writes the trace for Perfetto anew with both."""
    text = files / "demo-trace.txt"
    text.write_bytes(gzip.decompress((files / "demo-trace.txt.gz").read_bytes()))
    both = [programs / "fermata-timeline", BUILD / "vm/demo/card0.log", "--driver", text]
    outputs = (["--trace", reports / "demo-trace.json"], [*TURNS, "--svg", reports / "demo-turns.svg"])
    return max(run([*both, *output], check=False, cwd=TOP).returncode for output in outputs)


if __name__ == "__main__":
    main()
