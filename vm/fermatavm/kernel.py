# SPDX-License-Identifier: GPL-2.0
"""Stock kernels in the cache: image, modules, and a build tree with the Rust metadata that Debian's headers lack.

An entry is kernel-SERIES-KEY/ with vmlinuz, modules/, src/ (linux-source), build/ (KDIR) and info.json, which is written
last: an entry without it is half-made and is made again. It is made in place because a kernel build tree holds its own path.
"""

import argparse
import hashlib
import inspect
import json
import re
import shutil
import subprocess
import tempfile
from functools import cache, cached_property
from pathlib import Path

from .common import CACHE, JOBS, TOP, Timer, die, host_path, locked, need_space, run, say

PINS = TOP / "vm/kernels"
# The kernel that looks for mistakes (debug.py).
DEBUG = "7.2-debug"
# PREEMPT_RT and kCFI (the same).
REAL_TIME = "7.2-rt"
SPACE_GIB = 4
# Left packed: large, and no part of a module's build.
UNPACK_NOT = ["drivers/gpu/drm/amd/include", "drivers/net/wireless", "sound/soc", "arch/arm/boot/dts", "arch/arm64/boot/dts"]


def pins():
    """{series: (release, package version)} from vm/kernels."""
    rows = (line.split() for line in PINS.read_text().splitlines() if line and not line.startswith("#"))
    return {series: (release, version) for series, release, version in rows}


@cache
def toolchain():
    """The build root's versions of what the metadata depends on."""
    query = ["dpkg-query", "-W", "rustc", "bindgen", "gcc", "clang", "pahole"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout


class Kernel:
    """One stock kernel, by series ("7.2": as pinned) or by release ("7.2.12+deb13-amd64": as the archive has it)."""

    # What a build of it or of a module for it gives to make.
    make_options = ()
    # What it is booted with besides.
    append = ""

    def __init__(self, name):
        table = pins()
        pinned = next((series for series, (release, _) in table.items() if name in (series, release)), None)
        self.name = name
        if pinned:
            self.series = pinned
            self.release, self.version = table[pinned]
        else:
            self.series = ".".join(name.split(".")[:2])
            self.release, self.version = name, None
            if not name.endswith("-amd64") or "+deb" not in name:
                die(f"{name} is no Debian kernel that vm/ can build for; series known here: {', '.join(table)}")
        made_by = f"{self.release} {self.version} {toolchain()} {inspect.getsource(make)}"
        key = hashlib.sha256(made_by.encode()).hexdigest()[:12]
        self.dir = CACHE / f"kernel-{self.series}-{key}"

    @cached_property
    def info(self):
        return json.loads((self.dir / "info.json").read_text())

    src = property(lambda self: self.dir / "src")
    build = property(lambda self: self.dir / "build")
    vmlinuz = property(lambda self: self.dir / "vmlinuz")
    modules = property(lambda self: self.dir / "modules/lib/modules" / self.info["release"])
    kselftest = property(lambda self: self.src / "tools/testing/selftests")

    @property
    def hz(self):
        """Ticks a second."""
        return int(re.search(r"^CONFIG_HZ=(\d+)$", (self.build / ".config").read_text(), re.MULTILINE).group(1))

    def ready(self):
        return (self.dir / "info.json").exists() and self.vmlinuz.exists() and (self.build / "rust/libkernel.rmeta").exists()

    def ensure(self):
        """Make the entry if it is not there. Returns self."""
        if not self.ready():
            with locked(CACHE / f"{self.dir.name}.lock"):
                if not self.ready():
                    self.make()
        if self.version and self.info["version"] != self.version:
            say(f"kernel {self.series}: the pinned {self.version} is gone from the archive, using {self.info['version']}")
        return self

    def make(self):
        make(self)


def kernel_named(name):
    """A stock kernel, or a kernel with other options made from its source ("7.2-debug", "7.2-rt")."""
    from .debug import BUILT  # its module needs this one

    return next((built for built in BUILT if name.endswith(built.suffix)), Kernel)(name)


class Archive:
    """Downloads by apt with state of its own: the build root stays as it is, and no privilege is needed."""

    def __init__(self, folder, log):
        self.folder, self.log = folder, log
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.options = [
            "-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache",
            "-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=3", "-o", "Acquire::Languages=none",
        ]  # fmt: skip
        done = run(["apt-get", *self.options, "--error-on=any", "update"], log=log, check=False)
        if done.returncode:
            self.explain()

    def explain(self):
        text = Path(self.log).read_text(errors="replace").lower()
        if "no space left" in text:
            die("no space left in the cache folder: free some, or set FERMATA_CACHE to a larger disk")
        die(f"the Debian archive cannot be reached: connect, or set http_proxy or FERMATA_MIRROR ({host_path(self.log)})")

    def search(self, pattern):
        out = subprocess.run(
            ["apt-cache", *self.options, "search", "--names-only", pattern], capture_output=True, text=True, check=True
        ).stdout
        return [line.split()[0] for line in out.splitlines()]

    def versions(self, package):
        out = subprocess.run(["apt-cache", *self.options, "madison", package], capture_output=True, text=True, check=True).stdout
        return [line.split("|")[1].strip() for line in out.splitlines()]

    def fetch(self, packages):
        done = run(["apt-get", *self.options, "download", *packages], log=self.log, check=False, cwd=self.folder)
        if done.returncode:
            self.explain()


def version_key(text):
    return [int(n) for n in text.replace("+", ".").replace("-", ".").split(".") if n.isdigit()]


def resolve(kernel, archive):
    """(release, version): the pin where the archive still has it, else the newest of the series."""
    have = archive.versions(f"linux-headers-{kernel.release}")
    if kernel.version in have or (kernel.version is None and have):
        return kernel.release, kernel.version or have[0]
    if kernel.version is None:
        die(f"the archive has no linux-headers-{kernel.release}: upgrade this kernel, or name another tree with KDIR=")
    found = archive.search(rf"^linux-headers-{kernel.series}\.[0-9.]+\+deb13-amd64$")
    if not found:
        die(f"the archive has no {kernel.series} kernel any more: put a series that it has into vm/kernels")
    release = max((name.removeprefix("linux-headers-") for name in found), key=version_key)
    return release, archive.versions(f"linux-headers-{release}")[0]


def make(kernel):
    need_space(SPACE_GIB)
    clock = Timer()
    if kernel.dir.exists():
        say(f"kernel {kernel.series}: a half-made entry is made again")
        shutil.rmtree(kernel.dir)
    kernel.dir.mkdir()
    log = kernel.dir / "log"
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="tmp-kernel-") as tmp:
        tmp = Path(tmp)
        say(f"kernel {kernel.series}: fetching (about 350 MB)")
        archive = Archive(tmp, log)
        release, version = resolve(kernel, archive)
        images = archive.search(f"^linux-binary-(unsigned-)?{re.escape(release)}$")
        image = max(images, key=lambda name: "unsigned" in name, default=None)
        if not image:
            die(f"the archive has no kernel image for {release}: put another pin into vm/kernels")
        names = [f"linux-headers-{release}", image, f"linux-modules-{release}", f"linux-source-{kernel.series}"]
        archive.fetch([f"{name}={version}" for name in names])
        debs = tmp / "x"
        for deb in tmp.glob("*.deb"):
            run(["dpkg-deb", "-x", deb, debs], log=log)
            deb.unlink()
        lib = next(debs.glob("usr/lib/modules"))
        for name in ("vmlinuz", "vmlinuz.unsigned"):
            if (lib / release / name).exists():
                shutil.move(lib / release / name, kernel.vmlinuz)
        if not kernel.vmlinuz.exists():
            die(f"{image} holds no vmlinuz: see vm/fermatavm/kernel.py")
        for name in ("build", "source"):
            (lib / release / name).unlink(missing_ok=True)
        (kernel.dir / "modules/lib").mkdir(parents=True)
        shutil.move(lib, kernel.dir / "modules/lib/modules")
        run(["depmod", "-b", kernel.dir / "modules", release], log=log)
        say(f"kernel {kernel.series}: unpacking the source of {version} ({clock})")
        kernel.src.mkdir()
        run(
            ["tar", "-x", "-C", kernel.src, "--strip-components=1", *(f"--exclude={p}/*.[chS]*" for p in UNPACK_NOT),
             "-f", debs / f"usr/src/linux-source-{kernel.series}.tar.xz"], log=log,
        )  # fmt: skip
        headers = debs / f"usr/src/linux-headers-{release}"
        kernel.build.mkdir()
        shutil.copy(headers / ".config", kernel.build / ".config")
        # The suffix of the release, for vermagic: 7.2.12 of the source becomes 7.2.12+deb13-amd64.
        (kernel.build / "localversion").write_text(release[release.index("+") :] + "\n")
        say(f"kernel {kernel.series}: building Rust metadata ({clock})")
        make_cmd = ["make", "-C", kernel.src, f"O={kernel.build}", f"-j{JOBS}", "KBUILD_BUILD_TIMESTAMP=fermata"]
        run([*make_cmd, "olddefconfig"], log=log)
        run([*make_cmd, "prepare", "modules_prepare"], log=log)
        for name in ("Module.symvers", "vmlinux"):
            shutil.copy(headers / name, kernel.build / name)
    built = (kernel.build / "include/config/kernel.release").read_text().strip()
    if built != release:
        die(f"the build tree calls itself {built}, the kernel {release}: see {host_path(log)}")
    kernel.__dict__.pop("info", None)
    info = {"series": kernel.series, "release": release, "version": version}
    (kernel.dir / "info.json").write_text(json.dumps(info, indent=1) + "\n")
    say(f"kernel {kernel.series}: {version} ready ({clock})")


def parser():
    parser = argparse.ArgumentParser(prog="vm/kernel", description="Make kernels ready in the cache; prints the build tree (KDIR) of each.")
    parser.add_argument("kernel", nargs="*", help="series or Debian release (default: all pinned)")
    parser.add_argument("--names", action="store_true", help="only print the names of their entries in the cache (default: of all)")
    parser.add_argument("--missing", action="store_true", help="only print which of them are not ready (default: of all)")
    return parser


def main():
    args = parser().parse_args()
    every = [*pins(), DEBUG, REAL_TIME] if args.names or args.missing else pins()
    for name in args.kernel or every:
        kernel = kernel_named(name)
        if args.missing and not kernel.ready():
            print(name)
        if not args.missing:
            print(kernel.dir.name if args.names else kernel.ensure().build)


if __name__ == "__main__":
    main()
