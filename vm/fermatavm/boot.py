# SPDX-License-Identifier: GPL-2.0
"""Boot a kernel in QEMU with emulated cards, run a command in the machine, and report the result.

The output is that of the command, without kernel messages. build/vm/NAME/ gets the files that the guest leaves in /report, the
kernel's log, each card's log, and figures of the run in result.json (a copy goes to the folder FERMATA_RESULTS). The status is that
of the command, or
  121  the card failed or found a violation of the protocol
  122  the kernel complained (Oops, BUG, WARNING, IOMMU fault, ...): the lines are shown
  123  the machine ended before the command did
  124  the time limit: the last lines of the cards' logs and the stacks of the machine's programs are shown
"""

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import json
import math
import mmap
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path

from . import guest, host, module
from .common import ALIVE, BUILD, CACHE, TOP, die, locked, say, show_alive
from .kernel import kernel_named
from .trouble import TROUBLE

# rdtsc; shl rdx, 32; or rax, rdx; ret
READ_COUNTER = bytes.fromhex("0f31 48c1e220 4809d0 c3")
COUNTER_SPAN_NS = 50_000_000
COUNTER_TRIES = 5
GREETING = "try: fermatactl · /examples/hash abc · fermatactl top"
# Rows and columns of a terminal whose size is not known.
USUAL_SIZE = (24, 80)
# Where the build root, and thus the Debian system, has descriptions of terminals.
TERMINFO = [Path("/usr/lib/terminfo"), Path("/usr/share/terminfo")]

CARD_FAILED, KERNEL_COMPLAINED, ENDED_EARLY, TIMED_OUT = 121, 122, 123, 124
# The processor model without KVM. With 5-level page tables KASAN reports an access to missing memory if an interrupt comes while
# the kernel reads the processor's features: for that moment the kernel assumes 4 levels.
CPU = "max,la57=off"
# Seconds after which a boot counts as hung: five times what the debug kernel takes on a busy host.
HANGS_IN_BOOT = 240
# The name of the profile irq in version 0.1, accepted for one release.
RETIRED = "fermata"
IOMMUS = {
    "none": ([], ""),
    "intel": (["-device", "intel-iommu,caching-mode=on"], "intel_iommu=on iommu.strict=1"),
    "intel+intremap": (["-device", "intel-iommu,caching-mode=on,intremap=on"], "intel_iommu=on iommu.strict=1"),
    "intel+ats": (["-device", "intel-iommu,caching-mode=on,device-iotlb=on"], "intel_iommu=on iommu.strict=1"),
    "virtio": (["-device", "virtio-iommu-pci"], ""),
}


def share(tag, folder):
    """Share a folder by 9p, for vm/debian. The build root's checkout and cache are file systems of their own, hence `remap`."""
    folder = f"local,id={tag},path={folder},security_model=none,readonly=on,multidevs=remap"
    return ["-fsdev", folder, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def vfio_user(socket):
    """Return QEMU's options for the device behind a socket. QEMU gives up a device that has not responded for a minute. With QEMU's
    default of 5 s, a card was lost on a busy host."""
    return {"driver": "vfio-user-pci", "socket": {"path": socket, "type": "unix"}, "x-msg-timeout": 60_000}


class Card:
    """A card server: a process that QEMU (vfio-user) and the guest (control port) talk to."""

    def __init__(self, index, spec, out, run, programs):
        options = dict(item.split("=", 1) for item in spec.split(",") if item)
        self.port, self.function = options.pop("port", None), options.pop("function", None)
        profile = options.pop("profile", "irq")
        if profile == RETIRED:
            say(f"--card: the profile {RETIRED} is now called irq")
            profile = "irq"
        irq = options.pop("irq", "none" if profile == "base" else "msix")
        slots = options.pop("slots", "linkedlist+membench+sha256")
        foreign = options.pop("foreign", None)
        self.program = Path(options.pop("program", programs.foreign_card if foreign else programs.card))
        what = ["--slots", slots.replace("+", ",")]
        if foreign:
            what = ["--foreign", foreign, "--argument", options.pop("argument", "").replace("+", ",")]
        switches = [f"--{name}" for name in ("ats", "imports") if options.pop(name, None)]
        self.index, self.out = index, out
        self.socket, self.control = f"{run}/card{index}.sock", f"{run}/card{index}.ctl"
        self.log = out / f"card{index}.log"
        self.cmd = [self.program, "--socket", self.socket, "--control", self.control, "--log", self.log]
        self.cmd += ["--profile", profile, "--irq", irq, *what, *switches]
        for key, value in options.items():
            if not re.match(r"\d+\.", key):
                die(f"--card: no such option: {key}")
            slot, key = key.split(".", 1)
            self.cmd += ["--set", f"slot={slot},{key}={value}"]
        self.process = None

    def start(self):
        with open(self.out / f"card{self.index}.err", "wb") as err:
            self.process = subprocess.Popen([str(c) for c in self.cmd], stdout=subprocess.PIPE, stderr=err)
        ready, _, _ = select.select([self.process.stdout], [], [], 10)
        if not ready or self.process.stdout.readline().strip() != b"ready":
            sys.stderr.write((self.out / f"card{self.index}.err").read_text(errors="replace"))
            die(f"card {self.index} does not start: {shlex.join(map(str, self.cmd))}")

    def device(self):
        """Return QEMU's options for the device."""
        device = vfio_user(self.socket) | {"id": f"card{self.index}"}
        if self.port:
            return device | {"bus": f"port{self.index}"}
        return device | ({"addr": f"10.{self.function}", "multifunction": True} if self.function else {})

    def qemu(self):
        args = []
        port_options = f"id=port{self.index},chassis={self.index + 1}"
        if self.port == "switch":
            if self.index == 0:
                args = ["-device", "pcie-root-port,id=root,chassis=100", "-device", "x3130-upstream,id=switch,bus=root"]
            args += ["-device", f"xio3130-downstream,bus=switch,addr=0.{self.index},multifunction=on,{port_options}"]
        elif self.port:
            args = ["-device", f"pcie-root-port,{port_options},x-speed=5,x-width=1"]
        return [*args, "-device", json.dumps(self.device()), *port(f"fermata.card{self.index}", f"socket,path={self.control}")]

    def stop(self):
        """End the card; its exit status says whether it found a violation."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def port(name, chardev):
    ident = name.replace(".", "-")
    kind, _, rest = chardev.partition(",")
    return ["-chardev", f"{kind},id={ident},{rest}", "-device", f"virtserialport,chardev={ident},name={name}"]


def tally(path):
    """Return the sums of what the guest's programs counted, and the figures that they measured, from lines `+ NUMBER WHAT` and
    `= VALUE WHAT`."""
    sums, figures = Counter(), {}
    for line in path.read_text().splitlines() if path.exists() else []:
        kind, number, what = line.split(" ", 2)
        if kind == "+":
            sums[what] += int(number)
        else:
            figures[what] = int(number)
    return {"tally": dict(sums), "figures": figures}


def terminal(descriptor=0):
    """Return rows, columns and type of a terminal, for the machine's shell, since a serial line has none of these."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        columns, rows = 0, 0
    if not (rows and columns):
        rows, columns = USUAL_SIZE
    kind = os.environ.get("TERM") or "vt100"
    known = any((folder / kind[0] / kind).exists() for folder in TERMINFO)
    return rows, columns, kind if known else "xterm"


class Tail:
    """Copies what is appended to a file to a stream."""

    def __init__(self, path, stream):
        path.touch()
        self.file, self.stream = open(path, "rb"), stream

    def copy(self):
        data = self.file.read()
        if data and self.stream:
            self.stream.write(data)
            self.stream.flush()
        return bool(data)


def counter_pair(read):
    """Return the counter and the clock (ns), read in succession: the closest of several pairs."""
    pairs = []
    for _ in range(20):
        before = time.monotonic_ns()
        count = read()
        after = time.monotonic_ns()
        pairs.append((after - before, count, (before + after) // 2))
    return min(pairs)[1:]


def counter_khz():
    """Return the speed of the processor's time stamp counter in kHz: the median of several measurements.

    A guest without KVM reads the host's counter, and measures its speed at boot against timers that QEMU emulates. On a busy host the
    result has been up to 48 times too low. The guest's clock then ran so fast that every time limit expired at once.
    """
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(READ_COUNTER)
        place = ctypes.c_char.from_buffer(page)
        read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(place))
        speeds = []
        for _ in range(COUNTER_TRIES):
            count, at = counter_pair(read)
            time.sleep(COUNTER_SPAN_NS / 1e9)
            later_count, later = counter_pair(read)
            speeds.append((later_count - count) * 1_000_000 // (later - at))
        del read, place
    return sorted(speeds)[COUNTER_TRIES // 2]


def clock_arguments(kernel):
    """Return arguments that tell a kernel under TCG how fast its processors are. On a busy host the kernel's own measurement was
    sometimes wrong, and once never ended."""
    khz = counter_khz()
    return f"tsc_early_khz={khz} lpj={khz * 1000 // kernel.hz}"


def accelerator(kernel):
    """Return kvm if a boot under KVM has worked on this machine with this kernel and QEMU, else tcg; the answer is cached."""
    forced = os.environ.get("FERMATA_ACCEL")
    if forced:
        return forced
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    cpu = re.search(r"model name.*", Path("/proc/cpuinfo").read_text())
    version = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True).stdout
    key = f"{kernel.info} {version} {cpu and cpu.group()} {os.uname().release}"
    answer = CACHE / f"kvm-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not answer.exists():
        with locked(CACHE / "kvm.lock"):
            if not answer.exists():
                say("trying a boot under KVM (once; 20 s at most)")
                options = parse(
                    ["--kernel", kernel.series, "--no-module", "--guest", "none", "--timeout", "20", "--name", "kvm-probe", "--", "true"]
                )
                worked = Vm(options, kernel, "kvm", quiet=True).run() == 0
                temporary = answer.with_suffix(".tmp")
                temporary.write_text("kvm\n" if worked else "tcg\n")
                temporary.rename(answer)
                say("KVM works on this machine" if worked else "KVM does not boot this kernel on this machine: using TCG from now on")
    return answer.read_text().strip()


class Vm:
    """A run of the machine. It ends every process that it starts."""

    def __init__(self, options, kernel, accel, ko=None, quiet=False):
        self.options, self.kernel, self.accel, self.ko, self.quiet = options, kernel, accel, ko, quiet
        self.cards, self.qemu, self.host = [], None, None
        self.started = time.monotonic()

    def run(self):
        """Run the machine. Restart it up to twice if the kernel hangs or crashes at boot: under TCG on a busy host this happens before
        any code of this project runs."""
        for patience in (HANGS_IN_BOOT, HANGS_IN_BOOT, math.inf):
            with contextlib.ExitStack() as stack:
                self.out = out_folder(self.options.name)
                self.tmp = stack.enter_context(tempfile.TemporaryDirectory(prefix="vm-"))
                self.monitor = f"{self.tmp}/stacks.qmp"
                stack.callback(self.end)
                status = self._run(time.monotonic() + patience)
            if status is not None:
                break
            say("the kernel has not started its first process: restarting the machine")
        return status

    def has_begun(self):
        return "init: the first process begins" in (self.out / "console").read_text(errors="replace")

    def end(self):
        if self.host:
            self.host.stop()
        for process in [self.qemu, *(card.process for card in self.cards)]:
            if process and process.poll() is None:
                process.kill()
                process.wait()

    def _run(self, begins):
        """Return the status, or None if the machine's first process has not started by the time `begins`, or the machine ended before
        that process started."""
        opt, out = self.options, self.out
        self.cards = [Card(i, spec, out, self.tmp, profile_of(opt)) for i, spec in enumerate(opt.card)]
        for card in self.cards:
            card.start()
        self.host = host.Host(self.tmp, self.cards)
        initrd = Path(self.tmp) / "initrd"
        load = ["virtio_pci", "virtio_console", *(["virtio_iommu"] if opt.iommu == "virtio" else []), *(["virtio_blk"] if opt.disk else [])]
        config = {
            "PORTS": " ".join(["fermata.status", "fermata.host", *(f"fermata.card{card.index}" for card in self.cards)]),
            "LOAD": "1" if self.ko and not opt.no_load else "",
            "PARAMS": opt.params,
        }
        if opt.shell:
            rows, columns, kind = terminal()
            config |= {
                "SHELL_OF_TTY": "debian env -C /root bash" if opt.debian else "sh -l", "SIZE_OF_TTY": f"rows {rows} columns {columns}",
                "TERM": kind, "GREETING": GREETING if opt.card and self.ko and not opt.no_load else "",
            }  # fmt: skip
        payload = [tuple(item.rsplit(":", 1)) for item in opt.add]
        payload += guest.payload(opt.guest, profile_of(opt))
        if self.ko:
            payload.append((self.ko, "fermata.ko"))
        if opt.with_image or opt.kexec:
            payload.append((self.kernel.vmlinuz, "boot/vmlinuz"))
        if opt.delay:
            folder = module.build_in(BUILD / f"delay-{self.kernel.name}", self.kernel, TOP / "selftests/delay")
            payload.append((folder / "delay.ko", "delay.ko"))
        if opt.debian:
            payload.append((TOP / "vm/debian", "bin/debian"))
            load += ["9pnet_virtio", "9p", "overlay"]
        modules = [*load, *opt.modprobe]
        if opt.kexec:
            second = Path(self.tmp) / "second"
            guest.write_initramfs(second, self.kernel, config, modules, opt.kexec + "\n", payload)
            payload = [*payload, (second, "boot/initrd")]
        guest.write_initramfs(initrd, self.kernel, config, modules, shlex.join(opt.command) + "\n", payload)
        tails = [] if opt.shell else [Tail(out / "stdout", sys.stdout.buffer), Tail(out / "stderr", sys.stderr.buffer)]
        if self.quiet:
            tails = []
        elif opt.console:
            tails.append(Tail(out / "console", sys.stderr.buffer))
        with open(out / "qemu.err", "wb") as err:
            stdin = None if opt.shell else subprocess.DEVNULL
            cmd = self.command_line(initrd)
            (out / "qemu.cmd").write_text(shlex.join(cmd) + "\n")
            self.qemu = subprocess.Popen(cmd, stdin=stdin, stderr=err)
        deadline = time.monotonic() + opt.timeout if opt.timeout else None
        timed_out, heard = False, time.monotonic()
        while self.qemu.poll() is None:
            if any([tail.copy() for tail in tails]):
                heard = time.monotonic()
            elif not (opt.shell or self.quiet) and time.monotonic() > heard + ALIVE:
                heard += ALIVE
                show_alive(self.started)
            if deadline and time.monotonic() > deadline:
                timed_out = True
                break
            if time.monotonic() > begins:
                if not self.has_begun():
                    return None
                begins = math.inf
            time.sleep(0.03)
        for tail in tails:
            tail.copy()
        if begins != math.inf and self.qemu.returncode == 0 and not self.has_begun():
            return None
        return self.verdict(timed_out)

    def verdict(self, timed_out):
        """Return the run's status, the most serious finding first; each finding has a line that says where to look."""
        out, opt = self.out, self.options
        console = (out / "console").read_text(errors="replace")
        if timed_out:
            host.show_stacks(self.qemu, self.cards, self.monitor, out / "console")
            self.end()
        (out / "files").mkdir(exist_ok=True)
        if (out / "files.tar").stat().st_size:
            with tarfile.open(out / "files.tar") as tar:
                tar.extractall(out / "files", filter="data")
        statuses = [card.stop() for card in self.cards]
        complaints = [
            line
            for line in console.splitlines()
            if TROUBLE.search(line) and not any(re.search(allowed, line) for allowed in opt.allow)
        ]
        guest_status = (out / "status").read_text().strip()
        where = str(out).removeprefix(f"{TOP}/")
        if self.quiet:
            return int(guest_status) if guest_status else ENDED_EARLY
        self.write_result(len(complaints), 0 if opt.allow_card else sum(map(bool, statuses)))
        for line in complaints[:20]:
            say(f"kernel: {line}")
        if timed_out:
            say(f"the command has not ended after {opt.timeout} s: see {where}/console")
            return TIMED_OUT
        if complaints:
            say(f"the kernel complained: see {where}/console")
            return KERNEL_COMPLAINED
        if not guest_status:
            sys.stderr.write((out / "qemu.err").read_text(errors="replace"))
            say(f"the machine ended before the command did (QEMU status {self.qemu.returncode}): see {where}/console")
            return ENDED_EARLY
        for card, status in zip(self.cards, statuses, strict=True):
            if status and not opt.allow_card:
                sys.stderr.write((out / f"card{card.index}.err").read_text(errors="replace")[-2000:])
                say(f"card {card.index} ended with status {status}: see {where}/card{card.index}.log")
                return CARD_FAILED
        return int(guest_status)

    def disk(self):
        file = Path(self.tmp) / "disk"
        with open(file, "wb") as disk:
            disk.truncate(size_in_mib(self.options.disk) << 20)
        drive = f"file={file},if=none,id=disk,format=raw,cache=unsafe"
        return ["-drive", drive, "-device", "virtio-blk-pci,drive=disk"]

    def write_result(self, splats, failed_cards):
        """Write the figures that fermatavm.reliability adds up."""
        result = {
            "name": self.options.name, "kernel": self.kernel.series, "iommu": self.options.iommu, "cards": self.options.card,
            "seconds": round(time.monotonic() - self.started), "splats": splats, "failed_cards": failed_cards,
        } | tally(self.out / "files/tally")  # fmt: skip
        file = self.out / "result.json"
        file.write_text(json.dumps(result, indent=1) + "\n")
        if results := os.environ.get("FERMATA_RESULTS"):
            shutil.copy(file, Path(results) / f"{self.out.name}.json")

    def command_line(self, initrd):
        opt, out = self.options, self.out
        iommu_args, iommu_append = IOMMUS[opt.iommu]
        accel, clock = self.accel, ""
        if self.accel == "tcg":
            accel, clock = "tcg,thread=multi", clock_arguments(self.kernel)
        append = "console=ttyS0 panic=-1 oops=panic no_timer_check quiet loglevel=6 sysrq_always_enabled "
        append += f"{clock} {iommu_append} {self.kernel.append} {opt.append}"
        cmd = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        cmd += self.disk() if opt.disk else []
        cmd += ["-accel", accel, "-cpu", "host" if self.accel == "kvm" else CPU, "-smp", str(opt.cpus)]
        cmd += ["-object", f"memory-backend-memfd,id=mem,size={opt.memory},share=on"]
        cmd += ["-machine", "q35,memory-backend=mem", "-m", opt.memory]
        cmd += ["-kernel", str(self.kernel.vmlinuz), "-initrd", str(initrd), "-append", append]
        cmd += iommu_args  # before every device that it translates
        cmd += ["-serial", f"file:{out}/console", "-device", "virtio-serial-pci,max_ports=31"]
        if opt.shell:
            cmd += ["-chardev", "stdio,id=tty,signal=off", "-serial", "chardev:tty"]
        for name in ("stdout:out", "stderr:err", "status:status", "files.tar:files"):
            file, name = name.split(":")
            (out / file).touch()
            cmd += port(f"fermata.{name}", f"file,path={out}/{file}")
        for card in self.cards:
            cmd += card.qemu()
        cmd += ["-qmp", f"unix:{self.monitor},server=on,wait=off"]
        cmd += self.host.qemu() + port("fermata.host", f"socket,path={self.host.path}")
        if opt.debian:
            cmd += share("debian", "/")
        if opt.develop:
            cmd += share("libraries", guest.LIBRARIES) + share("checkout", TOP)
        if opt.layer:
            cmd += share("layer", opt.layer)
        if opt.qmp:
            cmd += ["-qmp", f"unix:{opt.qmp},server=on,wait=off"]
        return cmd + opt.qemu


# The locks of build/vm/NAME and build/vm/NAME.ko by name, held until the process ends, since programs read the folder after the run.
LOCKS = {}


def lock_named(name):
    """Lock build/vm/NAME and build/vm/NAME.ko for this process."""
    if name not in LOCKS:
        LOCKS[name] = contextlib.ExitStack()
        LOCKS[name].enter_context(locked(BUILD / f"vm/.{name}.lock"))


def lock_unnamed():
    """Lock the first of boot, boot.1, ... that no run uses. Return the name."""
    (BUILD / "vm").mkdir(parents=True, exist_ok=True)
    for name in ["boot", *(f"boot.{n}" for n in range(1, 100))]:
        lock = open(BUILD / f"vm/.{name}.lock", "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        LOCKS[name] = lock
        return name
    return die("too many machines run in this checkout")


def out_folder(name):
    """Return the empty folder of a run, which no other process uses."""
    lock_named(name)
    out = BUILD / "vm" / name
    if "FERMATA_SECOND_RUN" in os.environ and out.exists():
        first = out.with_name(f"{out.name}.first")
        subprocess.run(["rm", "-rf", first], check=True)
        out.rename(first)
    subprocess.run(["rm", "-rf", out], check=True)
    out.mkdir()
    return out


def size_in_mib(text):
    return int(text[:-1]) * {"M": 1, "G": 1024}[text[-1].upper()]


def gib_limited(text):
    """Parse a size of memory. Up to 2 GiB, all memory lies below the PCI hole, so that guest-physical addresses are offsets in the
    memory file."""
    if size_in_mib(text) > 2048:
        raise argparse.ArgumentTypeError("2G at most: the card's checker relies on it")
    return text


def parser():
    parser = argparse.ArgumentParser(prog="vm/boot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--kernel", default="7.2", help="series or Debian release (default 7.2)")
    add("--iommu", default="none", choices=IOMMUS)
    add(
        "--card", action="append", default=[], metavar="SPEC",
        help="plug a card; SPEC is profile=base|irq|relay,irq=msix|msi|none,slots=linkedlist+membench+sha256 (defaults: irq,"
        " its interrupts, those slots), SLOT.KEY=VALUE for a setting of a slot, port=1 to put it behind a root port,"
        " port=switch to put it behind a port of one switch, or function=N to make it a function of one device, so that cards"
        " share an IOMMU group,"
        " ats=1 for the capability of address translation services, imports=1 to accept states that the card has not saved,"
        " foreign=LIBRARY,argument=TEXT for the card of a library in place of the emulated one (docs/porting.md; + in TEXT becomes a"
        " comma), program=PATH for another server. May be given several times",
    )  # fmt: skip
    add("--shell", action="store_true", help="an interactive shell instead of a command")
    add("--memory", default="1G", type=gib_limited, help="up to 2G (default 1G)")
    add("--cpus", default=2, type=int)
    add("--timeout", default=None, type=float, metavar="SECONDS", help="limit for the whole run (default 120, none with --shell)")
    add("--name", help="keep the logs in build/vm/NAME (default: boot, boot.1, ...)")
    add("--append", default="", metavar="ARGS", help="more kernel arguments")
    add("--modprobe", action="append", default=[], metavar="MODULE", help="load a module of the kernel before fermata.ko")
    add("--params", default="", metavar="ARGS", help="parameters of fermata.ko")
    add("--no-load", action="store_true", help="put /fermata.ko into the machine, but do not load it")
    add("--no-module", action="store_true", help="neither build nor load fermata.ko")
    add("--guest", choices=["all", "selftests", "none"], default="all", help="programs of this tree in the machine (none: not built)")
    add("--release", action="store_true", help="programs and card with all optimisations, as for benchmarks")
    add("--module", metavar="PATH", help="another fermata.ko")
    add("--add", action="append", default=[], metavar="PATH:NAME", help="put a file or tree into the machine")
    add("--with-image", action="store_true", help="put the kernel image into the machine as /boot/vmlinuz")
    add("--delay", action="store_true", help="put the module that delays kernel functions into the machine, for tests of races")
    add("--kexec", metavar="COMMAND", help="put kernel and initrd of a second kernel, which runs COMMAND, into the machine's /boot")
    add("--disk", metavar="SIZE", help="plug an empty disk, /dev/vda, to hibernate to")
    add(
        "--debian", action="store_true",
        help="share the build root, a Debian system, in which `debian CMD` runs commands; the shell of --shell runs in it",
    )  # fmt: skip
    add(
        "--layer", metavar="NAME=PACKAGE,...",
        help="lay Debian packages over the Debian system; where they cannot be had, the output is TAP's plan of a test that is skipped",
    )  # fmt: skip
    add(
        "--develop", action="store_true",
        help="for programs that are written now: lay the libraries for C and Python over the Debian system, and show in its /fermata at"
        " once what changes in the checkout (without this, changes may not be seen)",
    )  # fmt: skip
    add("--console", action="store_true", help="show kernel messages as they come, on the error output")
    add("--allow", action="append", default=[], metavar="REGEX", help="complaints of the kernel that are expected")
    add("--allow-card", action="store_true", help="do not fail when the card ends with a status other than 0")
    add("--qmp", metavar="PATH", help="where to make a QMP socket")
    add("--qemu", action="append", default=[], metavar="ARG", help="one more argument for QEMU (write --qemu=-ARG)")
    add("command", nargs="*", help="the command to run in the machine")
    return parser


def parse(argv):
    options = parser().parse_args(argv)
    if bool(options.command) == options.shell:
        parser().error("give either a command after -- or --shell")
    if options.develop and not options.debian:
        parser().error("--develop needs --debian")
    if options.timeout is None:
        options.timeout = 0 if options.shell else 120
    return options


def profile_of(options):
    return guest.MEASURED if options.release else guest.TESTED


def prepare(options):
    """Make everything that a boot needs: kernel, module, card, programs of the guest. Return the kernel and the path of fermata.ko. A boot
    without a name gets one."""
    options.name = options.name or lock_unnamed()
    lock_named(options.name)
    kernel = kernel_named(options.kernel).ensure()
    ko = None
    if options.module:
        ko = Path(options.module).resolve()
    elif not options.no_module:
        ko = BUILD / f"vm/{options.name}.ko"
        module.build(kernel, copy=ko)
    if options.guest != "none":
        guest.build(kernel, profile_of(options))
    if options.card:
        guest.build_card(profile_of(options))
    if any("foreign=" in spec for spec in options.card):
        guest.build_foreign_card(profile_of(options))
    if options.develop:
        guest.build_libraries()
    return kernel, ko


def run(options):
    """Prepare and run the machine; return the status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.layer:
        name, _, packages = options.layer.partition("=")
        try:
            options.layer = guest.layer(name, packages.split(","))
        except guest.Unreachable as error:
            say(error)
            print("1..0 # SKIP no packages")
            return 0
    kernel, ko = prepare(options)
    shell = "; exit or ^D ends it, kernel messages are in dmesg" if options.shell else ""
    say(f"starting the virtual machine (ten seconds){shell}")
    try:
        return Vm(options, kernel, accelerator(kernel), ko).run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run(parse(sys.argv[1:])))
