# SPDX-License-Identifier: GPL-2.0
"""Test jobs that travel: the demo of docs/checkpoint.md, in a machine with two cards, and in two machines. Prints TAP.

A RISC-V program is saved half-way and resumed in a second machine (another kernel, another IOMMU); it is moved while it runs, to a
second card and to a second machine; truncated and damaged files are refused. In all cases the program must end with the output, the
cycles and the memory of a run that was not moved. The report is build/reports/travel.json.
"""

import json
import re
import subprocess
import sys
import tempfile

from .common import BUILD, TOP, Points, write_report

SLOTS = "profile=fermata,slots=riscv+riscv"
TAG = 0x7A
# Takes some seconds at the engine's default speed.
PROGRAM = f"--arg 300 --tag {TAG} /selftests/riscv-mixture"
# The beginning of each script: tells the card that a snapshot of another card will be loaded, and waits for a job.
PRELUDE = f"""
set -e
announce() {{ exec 3<>/dev/virtio-ports/fermata.card$1; echo "0 import token={TAG}" >&3; read -r answer <&3; exec 3>&-; }}
fd_of() {{ ls -l /proc/$1/fd 2>/dev/null | grep -c /dev/fermata; }}
begin() {{
	fermata-riscv run --device /dev/fermata0 $1 {PROGRAM} >/tmp/stayed & program=$!
	until [ "$(fd_of $program)" = 1 ]; do sleep 0.1; done
	sleep 1
}}
"""
# A job is saved half-way and its program is killed; then all kinds of damage to the file are tried.
SAVE = """
begin "--ballast 2"
fermata-checkpoint save --pid $program --hold /tmp/job
kill -9 $program
fermata-checkpoint show --json /tmp/job >/report/job.json
cp /tmp/job /report/job
size=$(stat -c %s /tmp/job)
for cut in 0 7 16 40 100 $((size / 2)) $((size - 1)); do
	head -c $cut /tmp/job >/tmp/bad
	! fermata-checkpoint restore /tmp/bad 2>>/report/refusals || exit 1
done
for at in 3 9 20 60 $((size / 3)) $((size - 10)); do
	cp /tmp/job /tmp/bad
	printf X | dd of=/tmp/bad bs=1 seek=$at conv=notrunc 2>/dev/null
	cmp -s /tmp/job /tmp/bad || ! fermata-checkpoint restore /tmp/bad 2>>/report/refusals || exit 1
done
(cat /tmp/job; echo) >/tmp/bad
! fermata-checkpoint restore /tmp/bad 2>>/report/refusals || exit 1
"""
GO_ON = """
announce 0
fermata-checkpoint restore --arena /tmp/arena /job
fermata-riscv read /tmp/arena >/report/travelled
"""
STAY = f"""
fermata-riscv run {PROGRAM} >/report/stayed
"""
# To the other card of the machine.
MOVE = """
announce 1
fermata-checkpoint receive --device /dev/fermata1 --arena /tmp/arena unix:/tmp/socket & receiver=$!
until [ -e /tmp/socket ]; do sleep 0.1; done
begin "--ballast 8"
fermata-checkpoint send --pid $program --kill unix:/tmp/socket >/report/moved
wait $receiver
fermata-riscv read /tmp/arena >/report/travelled
"""
SEND = """
begin "--ballast 8"
fermata-checkpoint send --pid $program --kill /dev/virtio-ports/fermata.peer >/report/moved
"""
RECEIVE = """
announce 0
fermata-checkpoint receive --arena /tmp/arena /dev/virtio-ports/fermata.peer
fermata-riscv read /tmp/arena >/report/travelled
"""


class Machine:
    """One run of vm/boot, beside others."""

    def __init__(self, name, script, *options, cards=1):
        self.out = BUILD / "vm" / name
        command = [sys.executable, "-m", "fermatavm.boot", "--name", name, "--timeout", "900", *options]
        command += ["--card", SLOTS] * cards + ["--", "sh", "-c", PRELUDE + script]
        self.process = subprocess.Popen(command, stdout=sys.stderr, cwd=TOP)

    def ends_well(self):
        return self.process.wait() == 0

    def left(self, name):
        file = self.out / "files" / name
        return file.read_text() if file.exists() else ""


def peer(path, server):
    """Return QEMU's options for an end of a stream between two machines."""
    chardev = f"socket,id=peer,path={path}," + ("server=on,wait=off" if server else "reconnect-ms=100")
    return ["--qemu=-chardev", f"--qemu={chardev}", "--qemu=-device", "--qemu=virtserialport,chardev=peer,name=fermata.peer"]


def figures(text):
    """Return the figures that `fermata-checkpoint send` prints."""
    found = re.search(r"(\d+) us without running, (\d+) bytes .* \((\d+) rounds\), (\d+) while", text)
    names = ("us_without_running", "bytes_while_it_ran", "rounds", "bytes_while_held")
    return dict(zip(names, map(int, found.groups()), strict=True)) if found else None


def main():
    points = Points(6)
    stayed, saved = Machine("travel-stayed", STAY, "--iommu", "none"), Machine("travel-saved", SAVE, "--iommu", "intel")
    home = stayed.left("stayed") if stayed.ends_well() else ""
    points.point(home.startswith("end 1, code 0,"), "a program that stays comes to its end")
    good = saved.ends_well()
    job = json.loads(saved.left("job.json") or "{}")
    half_way = good and job["description"]["job"] == "saved" and job["description"]["account"]["slices"] == 1
    points.point(half_way, "it is saved half-way")
    refusals = saved.left("refusals").splitlines()
    points.point(good and len(refusals) >= 13, f"files that are cut off or damaged are refused ({len(refusals)})")

    def arrived(machine):
        return machine.ends_well() and home != "" and machine.left("travelled") == home

    file = ["--add", f"{saved.out}/files/job:job"]
    restored = Machine("travel-restored", GO_ON, "--kernel", "7.3", "--iommu", "none", *file)
    points.point(arrived(restored), "it goes on from the file in a second machine")
    card = Machine("travel-cards", MOVE, "--iommu", "intel", cards=2)
    with tempfile.TemporaryDirectory(prefix="travel-") as folder:
        receiver = Machine("travel-receiver", RECEIVE, "--iommu", "intel", *peer(f"{folder}/peer", True))
        points.point(arrived(card), "it is moved to a second card while it runs")
        sender = Machine("travel-sender", SEND, "--iommu", "none", *peer(f"{folder}/peer", False))
        good = sender.ends_well()
        points.point(arrived(receiver) and good, "it is moved to a second machine while it runs")
    report = {
        "file": {name: job.get(name) for name in ("arena_bytes", "state_bytes", "file_bytes")},
        "to a second card": figures(card.left("moved")),
        "to a second machine": figures(sender.left("moved")),
        "refusals": refusals,
    }
    write_report("travel", report)
    points.end()


if __name__ == "__main__":
    main()
