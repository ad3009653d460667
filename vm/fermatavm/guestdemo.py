# SPDX-License-Identifier: GPL-2.0
"""make guestdemo: a virtual machine inside the machine has a share of the card (docs/deploy/guests.md).

The machine has an emulated card, the module and fermata-vfio. Debian's QEMU runs in the machine, and its vfio-user-pci connects to
fermata-vfio. QEMU's guest has the same kernel and the unmodified fermata.ko. The guest runs a job and selftests, while a tenant of the
host uses the card. Prints TAP. Usage: python3 -m fermatavm.guestdemo [OPTION of vm/boot]...
"""

import hashlib
import json
import re
import shlex
import sys
import tempfile
from pathlib import Path

from . import boot, guest
from .common import BUILD, Points

NAME = "guestdemo"
WORD = "fermata"
DIGEST = hashlib.sha256(WORD.encode()).hexdigest()
SELFTESTS = ["info", "job", "preempt"]
CARD = "profile=irq,slots=linkedlist+membench+sha256"
# What the guest runs. The guest has no ports, so the output goes to its console.
INNER = f"""
echo "the first program runs after $(cut -d. -f1 /proc/uptime) s"
/examples/hash {WORD}
cd /selftests
./run {" ".join(SELFTESTS)} 2>&1
echo "the selftests end with $?"
"""
# A machine type without a BIOS and without old devices, which would take minutes.
QEMU = [
    "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-accel", "tcg,thread=multi",
    "-cpu", boot.CPU, "-m", "320M", "-object", "memory-backend-memfd,id=mem,size=320M,share=on",
    "-machine", "microvm,acpi=on,pcie=on,memory-backend=mem", "-kernel", "/machine/boot/vmlinuz", "-initrd", "/machine/boot/guest",
    "-serial", "stdio", "-device", json.dumps(boot.vfio_user("/machine/run/guest.sock")),
]  # fmt: skip
# What the machine runs. The host's tenant hashes each second for as long as the guest runs; more jobs would slow the guest down.
OUTER = """
debian true
fermata-vfio serve --socket /run/guest.sock & daemon=$!
until [ -S /run/guest.sock ]; do sleep 0.1; done
while [ ! -e /run/over ]; do /examples/hash {word} >>/report/host; sleep 1; done & tenant=$!
debian {qemu} | tee /report/guest | while IFS= read -r line; do echo "# guest: $line"; done
touch /run/over
wait $tenant
# The daemon closes the contexts after the guest's machine has ended.
tries=0
until fermatactl --json guests >/report/guests && grep -q '"contexts":0,' /report/guests || [ $((tries += 1)) -gt 200 ]; do sleep 0.1; done
kill $daemon
"""


def write_initrd(path, kernel, module):
    """Write the initramfs of the guest."""
    parts = guest.TESTED.parts
    payload = [(module, "fermata.ko"), (parts / "examples/hash", "examples/hash")]
    payload += [(parts / "selftests" / name, f"selftests/{name}") for name in ["run", *SELFTESTS]]
    config = {"PORTS": "", "LOAD": "1", "PARAMS": "", "SHELL_OF_TTY": ""}
    command = shlex.join(["sh", "-c", INNER]) + " >/dev/ttyS0\n"
    guest.write_initramfs(path, kernel, config, [], command, payload)


def play(arguments):
    """Boot the machine, and the guest in it. Return whether both ended well."""
    kernel, module = boot.prepare(boot.parse(["--name", NAME, *arguments, "--", "true"]))
    append = f"console=ttyS0 panic=-1 oops=panic no_timer_check loglevel=3 {boot.clock_arguments(kernel)} {kernel.append}"
    qemu = shlex.join([*QEMU, "-append", append])
    with tempfile.TemporaryDirectory(prefix="guest-") as folder:
        initrd = Path(folder) / "guest"
        write_initrd(initrd, kernel, module)
        options = ["--name", NAME, "--debian", "--with-image", "--iommu", "intel", "--memory", "2G", "--timeout", "3000"]
        options += ["--params", "preempt_timeout_us=10000000", "--card", CARD, "--add", f"{initrd}:boot/guest", *arguments]
        command = ["sh", "-c", OUTER.format(qemu=qemu, word=WORD)]
        return boot.run(boot.parse([*options, "--", *command])) == 0


def main(arguments):
    points = Points(5)
    good = play(arguments)

    def left(name):
        file = BUILD / f"vm/{NAME}/files/{name}"
        return file.read_text(errors="replace") if file.exists() else ""

    console, host = left("guest").splitlines(), left("host").split()
    points.point(good, "neither kernel complains, and the host's card saw no violation of the protocol")
    points.point(DIGEST in console, "a job of the guest has the right result")
    tests = [f"ok {number} {name}" for number, name in enumerate(SELFTESTS, 1)]
    passed = sum(bool(re.match("    ok ", line)) and "# SKIP" not in line for line in console)
    whole = all(line in console for line in tests) and "the selftests end with 0" in console
    points.point(whole and passed > 0, f"selftests pass in the guest, as far as they do not ask the card ({passed})")
    points.point(host != [] and set(host) == {DIGEST}, f"a tenant of the host had the right results meanwhile ({len(host)} jobs)")
    guests = json.loads(left("guests") or "{}").get("guests", [])
    points.point([each["contexts"] for each in guests] == [0], "the guest leaves no contexts")
    points.end()


if __name__ == "__main__":
    main(sys.argv[1:])
