# SPDX-License-Identifier: GPL-2.0
"""The demos of docs/testing.md: boot a machine with an IOMMU, run fermata-demo in it, keep the report in build/reports/, and draw what
the slots did. Usage: python3 -m fermatavm.demo [busy] [OPTION of vm/boot]...

Without a word (make demo), tenants share a card. The pictures show the whole run and some turns; the trace for Perfetto has the
driver's view and, below, the card's. The demo fails if the two views differ in a turn, or in a span of a turn.

busy: the demo of make demo on a busy machine, as in make bench: a program computes on each CPU of the guest, and the CPUs have a lower
priority than the card. Prints whether the target for the gap is met (docs/benchmarks.md); a missed target is no failure. Draws nothing.

fermatavm.epoch (make epoch): the first figure of EPOCH and its basic benchmark, with EPOCH's costs of a frame, drawn from the card's log.
"""

import gzip
import json
import sys

from . import boot
from .bench import NAME, HostWatch
from .common import BUILD, TOP, keep_reports, run

REPORTS = BUILD / "reports"
# The guest cannot know whether the output is a terminal.
LIVE = ["--live"] if sys.stdout.isatty() else []
CARD = "profile=relay,slots=linkedlist+membench+sha256"
# The part of the demo that the picture of some turns shows: 60 ms, some time after all tenants have been on their slots.
TURNS = ["--from", "all-2000us+200", "--to", "all-2000us+260"]
TURNS += ["--title", "Eight programs share the three slots of a card: 60 ms of make demo"]
# The text is compressed before it leaves the machine.
PACK = 'status=0; "$@" || status=$?; gzip -c /tmp/demo-trace.txt >/report/demo-trace.txt.gz; exit $status'
# Keeps each CPU busy meanwhile, at normal priority.
BUSY = 'for cpu in $(seq "$(nproc)"); do fermata-bench spin & done; exec "$@"'
# The target for the gap of each slot at P50, in microseconds.
GAP_MAX = 100
# What A. A. Malik, E. Karabulut and A. Aysu measured for a frame in "EPOCH: Enabling Preemption Operation for Context Saving in
# Heterogeneous FPGA Systems"; a frame of their device has 101 words of 32 bits.
FRAMES = ",".join(f"{slot}.frame_bytes=404,{slot}.frame_save_ns=62200,{slot}.frame_restore_ns=67400" for slot in (0, 1))
NAMES = ["--name", "1=tenant 1", "--name", "2=tenant 2", "--name", "3=tenant 3"]


def play(name, card, arguments, options=(), command=()):
    """Boot the machine of a demo and keep its reports. Return the status, and the command that draws the card's log
    (fermata-timeline)."""
    options = boot.parse(["--name", name, "--iommu", "intel", "--timeout", "900", "--card", card, *options, *arguments, "--", *command])
    status = boot.run(options)
    files = BUILD / f"vm/{name}/files"
    keep_reports(sorted([*files.glob("*.json"), *files.glob("*.svg")]))
    return status, [boot.profile_of(options).programs / "fermata-timeline", BUILD / f"vm/{name}/card0.log"]


def draw(timeline, *outputs):
    return max(run([*timeline, *output], check=False, cwd=TOP).returncode for output in outputs)


def recorded(name):
    """Return the command of the guest that runs the demo and records it; the reports have the name."""
    record = ["fermatactl", "trace", "--output", f"/report/{name}-trace.json", "--svg", f"/report/{name}.svg"]
    record += ["--text", "/tmp/demo-trace.txt", "--"]
    return ["sh", "-c", PACK, "demo", *record, "fermata-demo", *LIVE, "--report", f"/report/{name}.json"]


def busy(arguments):
    watch = HostWatch(BUILD / "demo-busy-host.jsonl")
    watch.start()
    options = ["--with-image", "--qemu=-name", f"--qemu={NAME}"]
    status, _ = play("demo-busy", CARD, arguments, options, ["sh", "-c", BUSY, "busy", *recorded("demo-busy")])
    watch.stop()
    if status == 0:
        print(verdict(json.loads((REPORTS / "demo-busy.json").read_text())))
    return status


def verdict(report):
    """Return a sentence that says whether the worst of all slots and phases meets the target for the gap."""
    slots = [(slot, phase["name"]) for phase in report["phases"] for slot in phase["slots"] if slot["gap"]["count"]]
    slot, phase = max(slots, key=lambda found: found[0]["gap"]["p50"])
    gap = slot["gap"]["p50"] / 1000
    result = "met" if gap <= GAP_MAX else f"missed by {100 * gap / GAP_MAX - 100:.0f} %"
    where = f"slot {slot['slot']}, {phase}"
    return f"target: gap of make demo at P50, busy machine, at most {GAP_MAX} us: {gap:.0f} us at worst ({where}): {result}"


def demo(arguments):
    status, timeline = play("demo", CARD, arguments, ["--with-image"], recorded("demo"))
    if status:
        return status
    text = BUILD / "vm/demo/files/demo-trace.txt"
    text.write_bytes(gzip.decompress(text.with_name("demo-trace.txt.gz").read_bytes()))
    # The trace for Perfetto is written again, with both views.
    both = [*timeline, "--driver", text]
    return draw(both, ["--trace", REPORTS / "demo-trace.json"], [*TURNS, "--svg", REPORTS / "demo-turns.svg"])


def epoch(arguments):
    card = f"profile=relay,slots=riscv+riscv+counter_up+counter_down,{FRAMES}"
    status, timeline = play("epoch", card, arguments, command=["fermata-demo", "epoch"])
    if status:
        return status
    title = ["--title", "The first figure of EPOCH, as the card saw it"]
    figure = [*timeline, "--from", "t1", *NAMES]
    trace = ["--to", "end", "--trace", REPORTS / "epoch-trace.json"]
    return draw(figure, ["--to", "t6+100", *title, "--svg", REPORTS / "epoch.svg"], trace)


def main():
    if sys.argv[1:2] == ["busy"]:
        sys.exit(busy(sys.argv[2:]))
    sys.exit(demo(sys.argv[1:]))


if __name__ == "__main__":
    main()
