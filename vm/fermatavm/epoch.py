# SPDX-License-Identifier: GPL-2.0
"""make epoch: the first figure of EPOCH and its basic benchmark, with its costs of a frame, and a picture of it from the card's log."""

import shutil
import sys

from . import boot
from .common import BUILD, TOP, run, say

# What EPOCH measured for a frame (shared/reference/prior-art.md, section 4); one of its device has 101 words of 32 bits.
FRAMES = ",".join(f"{slot}.frame_bytes=404,{slot}.frame_save_ns=62200,{slot}.frame_restore_ns=67400" for slot in (0, 1))
OPTIONS = ["--name", "epoch", "--iommu", "intel", "--timeout", "900"]
OPTIONS += ["--card", f"profile=fermata,slots=riscv+riscv+counter_up+counter_down,{FRAMES}"]
NAMES = ["1=tenant 1", "2=tenant 2", "3=tenant 3"]


def main():
    options = boot.parse([*OPTIONS, *sys.argv[1:], "--", "fermata-demo", "epoch"])
    status = boot.run(options)
    reports, out = BUILD / "reports", BUILD / "vm/epoch"
    reports.mkdir(exist_ok=True)
    if (out / "files/epoch.json").exists():
        shutil.copy(out / "files/epoch.json", reports / "epoch.json")
        draw = [boot.profile_of(options).programs / "fermata-timeline", out / "card0.log", "--from", "t1"]
        draw += [word for name in NAMES for word in ("--name", name)]
        title = ["--title", "The first figure of EPOCH, as the card saw it"]
        outputs = (["--to", "t6+100", *title, "--svg", reports / "epoch.svg"], ["--to", "end", "--trace", reports / "epoch-trace.json"])
        status = status or max(run([*draw, *output], check=False, cwd=TOP).returncode for output in outputs)
        say("report: build/reports/epoch.json, the picture: build/reports/epoch.svg, for Perfetto: build/reports/epoch-trace.json")
    sys.exit(status)


if __name__ == "__main__":
    main()
