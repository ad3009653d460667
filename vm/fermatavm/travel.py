# SPDX-License-Identifier: GPL-2.0
"""Test jobs that travel: the demo of docs/checkpoint.md, in a machine with two cards, and in two machines. Prints TAP.

A RISC-V program is saved half-way and resumed in a second machine (another kernel, another IOMMU); it is moved while it runs, to a
second card and to a second machine; truncated and damaged files are refused. In all cases the program must end with the output, the
cycles and the memory of a run that was not moved. The files of tools/checkpoint/tests/files.txt, of earlier and later tools, are
restored or refused. The report is build/reports/travel.json.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from .common import BUILD, TOP, Points, write_report

SLOTS = "profile=irq,slots=riscv+riscv,0.speed=3,1.speed=3"
TAG = 0x7A
# Takes 15 seconds at this speed.
PROGRAM = f"--arg 300 --tag {TAG} /selftests/riscv-mixture"
# The beginning of each script: functions that tell the card that a snapshot of another card will be loaded, and that wait for a job.
PRELUDE = f"""
set -e
announce() {{ exec 3<>/dev/virtio-ports/fermata.card$1; echo "0 import token=${{2:-{TAG}}}" >&3; read -r answer <&3; exec 3>&-; }}
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

# Files of other tools. A job that was restored with a reservation is saved again, which must name its features.
FILES = """
restore() {
	echo "= $1"
	[ -z "$2" ] || announce 0 $2
	fermata-checkpoint restore $1 2>&1 | grep -v '^the arena is mapped' || true
}
again() {
	announce 0 $2
	fermata-checkpoint restore $1 >/dev/null & program=$!
	until fermata-checkpoint save --pid $program --hold again >/dev/null 2>&1 && fermata-checkpoint show again | grep -q '^job *Saved'; do
		kill -0 $program
	done
	kill -9 $program
	fermata-checkpoint show again | grep ^features
}
cd /files
{
	restore held 0xf1; restore reserved 0xf2; restore share 0xf1; restore new; restore moved 0xf7; restore later 0xf2
	restore idle; restore bare
} >/report/restored
restore unknown >/report/unknown
{ again reserved 0xf2; restore again 0xf2; } >/report/again
"""
# The result of a walk of 3,000,123 nodes.
WALKED = "register 0x38: 0x2dc73b\nregister 0x40: 0x36cd9b366cd9b378\n"
NO_JOB = "fermata-checkpoint: {0}: there is no job in it\n"
RESTORED = f"""= held
{WALKED}= reserved
{WALKED}= share
not as it was: Share, which cannot be set here
{WALKED}= new
register 0x38: 0x3e8
register 0x40: 0x48913966cd9b35e0
= moved
register 0x38: 0x5b8dfb
register 0x40: 0xd91224489122477b
= later
{WALKED}= idle
{NO_JOB.format("idle")}= bare
{NO_JOB.format("bare")}"""
UNKNOWN = """= unknown
fermata-checkpoint: unknown: the checkpoint needs the feature time-travel, which this program does not know: \
restore it with a newer fermata-checkpoint
"""
AGAIN = f"features    cooperative, reservation\n= again\n{WALKED}"


class Machine:
    """One run of vm/boot, beside others."""

    def __init__(self, name, script, *options, cards=1, slots=SLOTS):
        self.out = BUILD / "vm" / name
        command = [sys.executable, "-m", "fermatavm.boot", "--name", name, "--timeout", "900", *options]
        command += ["--card", slots] * cards + ["--", "sh", "-c", PRELUDE + script]
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


def write_files(folder):
    """Write the files of tools/checkpoint/tests/files.txt to a folder."""
    for part in re.split("^= ", (TOP / "tools/checkpoint/tests/files.txt").read_text(), flags=re.MULTILINE)[1:]:
        name, *lines = part.partition("\n\n")[0].splitlines()
        Path(folder, name).write_bytes(bytes.fromhex("".join(lines)))


def figures(text):
    """Return the figures that `fermata-checkpoint send` prints."""
    found = re.search(r"(\d+) us without running, (\d+) bytes .* \((\d+) rounds\), (\d+) while", text)
    names = ("us_without_running", "bytes_while_it_ran", "rounds", "bytes_while_held")
    return dict(zip(names, map(int, found.groups()), strict=True)) if found else None


def main():
    points = Points(9)
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
    with tempfile.TemporaryDirectory(prefix="travel-") as folder:
        write_files(folder)
        slots = "profile=irq,slots=linkedlist,0.speed=4"
        files = Machine("travel-files", FILES, "--iommu", "intel", "--add", f"{folder}:files", slots=slots)
        good = files.ends_well()
    points.point(good and files.left("restored") == RESTORED, "files of earlier and later tools are restored")
    points.point(good and files.left("unknown") == UNKNOWN, "a file that needs an unknown feature is refused")
    points.point(good and files.left("again") == AGAIN, "a file that is saved names the features of its job")
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
