# SPDX-License-Identifier: GPL-2.0
"""Test Secure Boot with DKMS's key as the owner of a machine sets it up (docs/packaging.md, Signing). Prints TAP.

Firmware, shim, GRUB and kernel are those that Debian signs; mokutil requests the enrolment, MokManager asks its questions at the
console, and then the kernel loads the signed module only. Modules and key are those that fermatavm.dkms left in build/dkms.
"""

import contextlib
import hashlib
import inspect
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pexpect

from . import dkms
from .common import BUILD, CACHE, locked, run
from .guest import Archive as Initramfs
from .guest import add_modules
from .kernel import Archive, kernel_named

OUT = BUILD / "vm/secureboot"
FIRMWARE = Path("/usr/share/OVMF")
PASSWORD = "a word for once"
PROMPT = "machine> "
GRUB = """search --file --set=root /vmlinuz
linux /vmlinuz console=ttyS0 no_timer_check quiet
initrd /initrd
boot
"""
INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin PS1='{PROMPT}'
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
modprobe efivarfs
mount -t efivarfs vars /sys/firmware/efi/efivars
mount -t securityfs security /sys/kernel/security
stty cols 200 </dev/ttyS0
exec setsid -c sh -i </dev/ttyS0 >/dev/ttyS0 2>&1
"""


class Signed:
    """The files that Debian has signed for Secure Boot, beside the kernel in the cache: its image, GRUB, shim and MokManager."""

    PACKAGES = {
        "shim-signed": ["usr/lib/shim/shimx64.efi.signed"],
        "shim-helpers-amd64-signed": ["usr/lib/shim/mmx64.efi.signed"],
        "grub-efi-amd64-signed": ["usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"],
    }

    def __init__(self, kernel):
        info = kernel.info
        self.packages = self.PACKAGES | {
            f"linux-binary-{info['release']}={info['version']}": [f"usr/lib/modules/{info['release']}/vmlinuz"]
        }
        key = hashlib.sha256(f"{self.packages} {inspect.getsource(Signed)}".encode()).hexdigest()[:12]
        self.dir = kernel.dir / f"signed-{key}"

    def ensure(self):
        with locked(self.dir.with_suffix(".lock")):
            if not self.dir.exists():
                self.fetch()
        return self

    def fetch(self):
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="tmp-signed-") as tmp:
            tmp = Path(tmp)
            Archive(tmp, tmp / "log").fetch(self.packages)
            for deb in tmp.glob("*.deb"):
                run(["dpkg-deb", "-x", deb, tmp / "x"])
            (tmp / "done").mkdir()
            for path in (path for paths in self.packages.values() for path in paths):
                shutil.copy(tmp / "x" / path, tmp / "done")
            (tmp / "done").rename(self.dir)


def libraries(program):
    """Return the paths of the libraries of a program."""
    out = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", out)]


def make_initramfs(path, kernel):
    with open(path, "wb") as file:
        archive = Initramfs(file)
        for name in ("bin", "dev", "proc", "sys"):
            archive.folder(name)
        archive.write("init", INIT.encode(), 0o755)
        archive.add(Path("/usr/bin/busybox"), "bin/busybox")
        for program in [Path("/usr/bin/mokutil"), *libraries("/usr/bin/mokutil")]:
            archive.add(program.resolve(), str(program).lstrip("/"))
        add_modules(archive, kernel, ["efivarfs"])
        for name in ("fermata.ko", "unsigned.ko", "mok.pub"):
            archive.add(BUILD / "dkms" / name, name)
        archive.close()


def make_disk(folder, kernel):
    """Make the files of the machine's EFI system partition, which QEMU shows as a disk."""
    signed = Signed(kernel).ensure().dir
    boot = folder / "EFI/BOOT"
    boot.mkdir(parents=True)
    (folder / "EFI/debian").mkdir()
    shutil.copy(signed / "shimx64.efi.signed", boot / "BOOTX64.EFI")
    shutil.copy(signed / "mmx64.efi.signed", boot / "mmx64.efi")
    shutil.copy(signed / "grubx64.efi.signed", boot / "grubx64.efi")
    shutil.copy(signed / "vmlinuz", folder)
    (folder / "EFI/debian/grub.cfg").write_text(GRUB)
    make_initramfs(folder / "initrd", kernel)


@contextlib.contextmanager
def machine(disk, variables):
    """Run a machine whose firmware trusts Microsoft's keys, as machines are sold. Its console goes to build/vm/secureboot/console."""
    cmd = ["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot", "-m", "1G"]
    cmd += ["-accel", "tcg", "-cpu", "max", "-machine", "q35,smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on"]
    cmd += ["-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={FIRMWARE}/OVMF_CODE_4M.secboot.fd"]
    cmd += ["-drive", f"if=pflash,unit=1,format=raw,file={variables}"]
    cmd += ["-drive", f"if=virtio,format=raw,readonly=on,file=fat:{disk}"]
    with open(OUT / "console", "a", encoding="utf-8") as log:
        child = pexpect.spawn("qemu-system-x86_64", cmd, timeout=600, encoding="utf-8", codec_errors="replace")
        child.logfile_read = log
        try:
            yield child
        finally:
            child.close(force=True)


class Shell:
    """Root's shell at the console of a machine that has booted."""

    def __init__(self, child):
        self.child = child
        child.expect_exact(PROMPT)

    def status(self, command):
        """Return a command's status, and the output of the command and the kernel."""
        self.child.sendline(f"{command}; echo status $?")
        self.child.expect(r"status (\d+)\r")
        status, said = int(self.child.match[1]), self.child.before
        self.child.expect_exact(PROMPT)
        return status, said

    def must(self, command, words, good=True):
        status, said = self.status(command)
        assert (status == 0) == good and words in said, f"{command}: {status}: {said}"

    def refused(self, module, words):
        """Check that the kernel refuses to load a module, with the expected message."""
        self.must(f"insmod {module}", "Key was rejected by service", good=False)
        self.must("dmesg | tail -n 5", words)

    def leave(self, how):
        self.child.sendline(f"sync; {how} -f")
        self.child.expect(pexpect.EOF)


def before(child):
    """Test the boot before the key is enrolled, and request the enrolment."""
    shell = Shell(child)
    yield "Secure Boot is on, and locks the kernel down"
    shell.must("mokutil --sb-state", "SecureBoot enabled")
    shell.must("cat /sys/kernel/security/lockdown", "[integrity]")
    yield "a module signed by a key that is not enrolled is refused"
    shell.refused("/fermata.ko", "Loading of module with unavailable key is rejected")
    yield "mokutil asks for a password, and leaves the request"
    child.sendline("mokutil --import /mok.pub")
    for question in ("input password: ", "input password again: "):
        child.expect_exact(question)
        child.sendline(PASSWORD)
    child.expect_exact(PROMPT)
    shell.must("mokutil --list-new", "DKMS module signing key")
    shell.leave("reboot")


def enrol(child):
    """Go through MokManager's menus. Each key redraws the menu, so a menu is recognised by words that the previous menu lacks."""
    down, enter = "\x1b[B", "\r"
    yield "MokManager asks, and enrols the key"
    for shown, keys in (
        ("Press any key to perform MOK management", " "),
        ("Enroll hash from disk", down + enter),  # "Enroll MOK" is behind "Continue boot"
        ("View key 0", down + enter),  # before "Continue"
        ("Yes", down + enter),  # behind "No"
        ("Password:", PASSWORD + enter),
        ("Reboot", enter),
    ):
        child.expect_exact(shown)
        time.sleep(1)
        for key in re.findall(r"\x1b\[B|.|\r", keys):
            child.send(key)
            time.sleep(0.2)
    child.expect(pexpect.EOF)


def after(child):
    shell = Shell(child)
    yield "mokutil says that the key is enrolled"  # the status of --test-key is 1 then
    shell.must("mokutil --test-key /mok.pub", "is already enrolled", good=False)
    yield "the kernel is still locked down, and refuses a module without signature"
    shell.must("cat /sys/kernel/security/lockdown", "[integrity]")
    shell.refused("/unsigned.ko", "Loading of unsigned module is rejected")
    yield "it loads the module that DKMS has signed"
    shell.must("insmod /fermata.ko", "")
    shell.must("grep ^fermata /proc/modules", "Live")
    shell.leave("poweroff")


def report(points, planned):
    """Run the points, each up to the name of the next point, and print them. Return whether all passed."""
    number, name = 0, None
    print(f"1..{planned}", flush=True)
    try:
        for following in points:
            if name:
                print(f"ok {number} {name}", flush=True)
            number, name = number + 1, following
        print(f"ok {number} {name}")
    except (AssertionError, pexpect.ExceptionPexpect) as error:
        for line in str(error).splitlines():
            print(f"# {line}")
        print(f"not ok {number} {name}")
        return False
    return True


def main():
    dkms.ensure()
    kernel = kernel_named("7.2").ensure()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as tmp:
        disk, variables = Path(tmp) / "disk", Path(tmp) / "variables"
        make_disk(disk, kernel)
        shutil.copy(FIRMWARE / "OVMF_VARS_4M.ms.fd", variables)

        def boots():
            for boot in (before, enrol, after):
                with machine(disk, variables) as child:
                    yield from boot(child)

        sys.exit(0 if report(boots(), 7) else 1)


if __name__ == "__main__":
    main()
