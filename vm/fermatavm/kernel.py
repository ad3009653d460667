# SPDX-License-Identifier: GPL-2.0
"""Kernels in the cache: image, modules, and a build tree for modules in Rust.

A stock kernel ("7.2") is unpacked from Debian's packages; its build tree is made with the Rust metadata that Debian's headers lack.
A kernel with other options ("7.2-debug", "7.2-rt") is built from the source of a stock kernel.

An entry is kernel-SERIES-KEY/ with vmlinuz, modules/, src/ (linux-source), build/ (KDIR) and info.json. info.json is written last: an
entry without it is incomplete and is made again. Entries are made in place, because a kernel build tree contains its own path.
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

from .common import CACHE, JOBS, TOP, Timer, die, host_path, locked, need_space, run, say, working

PINS = TOP / "vm/kernels"
# The kernel with debugging options, and the kernel with PREEMPT_RT and kCFI.
DEBUG, REAL_TIME = "7.2-debug", "7.2-rt"
# Has prepare_tree(), with which DKMS and this file configure a build tree and make the Rust metadata.
RECIPE = TOP / "packaging/dkms/lib.sh"
# Options of all kernels that are built here.
CONFIG = TOP / "vm/guest.config"
SPACE_GIB = 4
# Parts of the source that stay packed: they are large, and no module's build needs them.
UNPACK_NOT = ["drivers/gpu/drm/amd/include", "drivers/net/wireless", "sound/soc", "arch/arm/boot/dts", "arch/arm64/boot/dts"]


def pins():
    """{series: (release, package version)} from vm/kernels."""
    rows = (line.split() for line in PINS.read_text().splitlines() if line and not line.startswith("#"))
    return {series: (release, version) for series, release, version in rows}


@cache
def toolchain():
    """Return the versions of the build root's packages that the metadata depend on."""
    query = ["dpkg-query", "-W", "rustc", "bindgen", "gcc", "clang", "pahole"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout


class Kernel:
    """An entry of the cache. A subclass sets name, series, release, version (None: not pinned) and dir, and has fill()."""

    # Options for make, for builds of the kernel and of modules.
    make_options = ()
    # How long making the entry takes on two cores.
    duration = "about a minute and a half"
    # More kernel parameters.
    append = ""

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
        """The frequency of the timer interrupt."""
        return int(re.search(r"^CONFIG_HZ=(\d+)$", (self.build / ".config").read_text(), re.MULTILINE).group(1))

    def ready(self):
        return (self.dir / "info.json").exists() and self.vmlinuz.exists() and (self.build / "rust/libkernel.rmeta").exists()

    def ensure(self):
        """Make the entry if it does not exist. Return self."""
        if not self.ready():
            with locked(CACHE / f"{self.dir.name}.lock"):
                if not self.ready():
                    self.make()
        if self.version and self.info["version"] != self.version:
            say(f"kernel {self.series}: the pinned {self.version} is gone from the archive, using {self.info['version']}")
        return self

    def make(self):
        need_space(SPACE_GIB)
        clock = Timer()
        if self.dir.exists():
            say(f"kernel {self.series}: a half-made entry is made again")
            shutil.rmtree(self.dir)
        self.dir.mkdir()
        with working(f"kernel {self.series} is made once, in {self.duration}:"):
            version = self.fill(self.dir / "log", clock)
        self.__dict__.pop("info", None)
        release = (self.build / "include/config/kernel.release").read_text().strip()
        info = {"series": self.series, "release": release, "version": version or release}
        (self.dir / "info.json").write_text(json.dumps(info, indent=1) + "\n")
        say(f"kernel {self.series}: {info['version']} ready ({clock})")


def entry(kernel, *made_by):
    """Return the folder of a kernel's entry, named after everything that the entry is made from."""
    made_by = " ".join(map(str, [*made_by, toolchain(), inspect.getsource(type(kernel).fill)]))
    return CACHE / f"kernel-{kernel.series}-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}"


class StockKernel(Kernel):
    """A kernel of Debian, by series ("7.2": as pinned) or by release ("7.2.12+deb13-amd64": as the archive has it)."""

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
                die(
                    f"{name} is no Debian kernel that vm/ can build for; series known here: {', '.join(table)}. Boot one of them (Debian's "
                    f"trixie-backports has 7.2), build for one by `make KRELEASE={next(iter(table))}`, or try the module in a virtual machine: `make vm`"
                )
        recipe = re.search(r"^prepare_tree\(\).*?^}", RECIPE.read_text(), re.MULTILINE | re.DOTALL).group()
        self.dir = entry(self, self.release, self.version, recipe)

    def fill(self, log, clock):
        """Fetch, unpack and prepare the kernel; returns the version of its packages."""
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="tmp-kernel-") as tmp:
            tmp = Path(tmp)
            say(f"kernel {self.series}: fetching (about 350 MB)")
            release, version, debs = fetch(self, tmp, log)
            lib = debs / "usr/lib/modules"
            for name in ("vmlinuz", "vmlinuz.unsigned"):
                if (lib / release / name).exists():
                    shutil.move(lib / release / name, self.vmlinuz)
            if not self.vmlinuz.exists():
                die(f"the packages of {release} hold no vmlinuz: see vm/fermatavm/kernel.py")
            for name in ("build", "source"):
                (lib / release / name).unlink(missing_ok=True)
            (self.dir / "modules/lib").mkdir(parents=True)
            shutil.move(lib, self.dir / "modules/lib/modules")
            run(["depmod", "-b", self.dir / "modules", release], log=log)
            say(f"kernel {self.series}: unpacking the source of {version} ({clock})")
            self.src.mkdir()
            packed = [f"--exclude={path}/*.[chS]*" for path in UNPACK_NOT]
            source = debs / f"usr/src/linux-source-{self.series}.tar.xz"
            run(["tar", "-x", "-C", self.src, "--strip-components=1", *packed, "-f", source], log=log)
            headers = debs / f"usr/src/linux-headers-{release}"
            self.build.mkdir()
            shutil.copy(headers / ".config", self.build / ".config")
            say(f"kernel {self.series}: building Rust metadata ({clock})")
            prepare = ["sh", "-euc", f'. {RECIPE}; prepare_tree "$@"', "sh", self.src, self.build, release, "gcc", "modules_prepare"]
            run(prepare, log=log)
            for name in ("Module.symvers", "vmlinux"):
                shutil.copy(headers / name, self.build / name)
        return version


class BuiltKernel(Kernel):
    """A kernel with other options, built by clang, because its modules must be. Its options are in the file of vm/ that is named after
    the suffix of the series."""

    suffix = None
    make_options = ("LLVM=1",)
    duration = "about ten minutes"
    # The 256 pseudo-terminals of the legacy kind take eleven seconds of each boot.
    append = "pty.legacy_count=0"
    src = property(lambda self: self.stock.src)

    def __init__(self, name):
        self.stock = StockKernel(name.removesuffix(self.suffix))
        self.name, self.series = name, self.stock.series + self.suffix
        self.release, self.version = None, None
        self.configs = [CONFIG, TOP / f"vm/{self.suffix.removeprefix('-')}.config"]
        self.dir = entry(self, self.stock.dir.name, *(config.read_text() for config in self.configs))

    def fill(self, log, clock):
        """Configure and build the kernel."""
        self.stock.ensure()
        self.build.mkdir()
        make_cmd = ["make", "-C", self.src, f"O={self.build}", "LLVM=1", f"-j{JOBS}", "KBUILD_BUILD_TIMESTAMP=fermata"]
        run([*make_cmd, "tinyconfig"], log=log)
        config = self.build / ".config"
        merge = ["bash", self.src / "scripts/kconfig/merge_config.sh", "-m", "-O", self.build, config, *self.configs]
        run(merge, log=log, cwd=self.src)
        run([*make_cmd, "olddefconfig"], log=log)
        for wanted in self.configs:
            check_config(wanted, config.read_text().splitlines())
        run([*make_cmd, "bzImage", "modules"], log=log)
        run([*make_cmd, f"INSTALL_MOD_PATH={self.dir}/modules", "INSTALL_MOD_STRIP=1", "modules_install"], log=log)
        shutil.copy(self.build / "arch/x86/boot/bzImage", self.vmlinuz)


class DebugKernel(BuiltKernel):
    """Reports bugs, and which places of its modules were reached (KCOV)."""

    suffix = "-debug"
    make_options = (*BuiltKernel.make_options, "KCOV_INSTRUMENT=y")
    # Freed pages are poisoned, and checked when they are allocated again. Slabs with consistency checks have no free lists for each
    # processor, in which kmemleak would find stale pointers to leaked objects.
    append = f"page_poison=1 slab_debug=F,kmalloc-* {BuiltKernel.append}"


class RealTimeKernel(BuiltKernel):
    """PREEMPT_RT and kCFI."""

    suffix = "-rt"


BUILT = (DebugKernel, RealTimeKernel)


def kernel_named(name):
    """A stock kernel ("7.2"), or a kernel with other options made from its source ("7.2-debug", "7.2-rt")."""
    return next((built for built in BUILT if name.endswith(built.suffix)), StockKernel)(name)


class Archive:
    """Downloads by apt with its own state, so that the build root stays unchanged and no privilege is needed."""

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
    """Return (release, version): the pinned ones if the archive has them, else the newest ones of the series."""
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


def fetch(kernel, folder, log):
    """Download and unpack the kernel's packages; return release, version, and the folder with their files."""
    archive = Archive(folder, log)
    release, version = resolve(kernel, archive)
    images = archive.search(f"^linux-binary-(unsigned-)?{re.escape(release)}$")
    image = max(images, key=lambda name: "unsigned" in name, default=None)
    if not image:
        die(f"the archive has no kernel image for {release}: put another pin into vm/kernels")
    names = [f"linux-headers-{release}", image, f"linux-modules-{release}", f"linux-source-{kernel.series}"]
    archive.fetch([f"{name}={version}" for name in names])
    debs = folder / "x"
    for deb in folder.glob("*.deb"):
        run(["dpkg-deb", "-x", deb, debs], log=log)
        deb.unlink()
    return release, version, debs


def check_config(config, have):
    """Fail if the kernel lacks an option of a file. The kernel's configuration silently drops options that were renamed, or whose
    dependencies are missing."""
    wanted = [line for line in config.read_text().splitlines() if line.startswith("CONFIG_") or line.endswith("is not set")]
    missing = [line for line in wanted if line not in have and not (line.startswith("#") and off(line, have))]
    if missing:
        die(f"{config.relative_to(TOP)}: the kernel does not take {', '.join(missing)}")


def off(line, have):
    """Return whether an option is off. An option whose dependencies are missing has no line at all."""
    option = line.split()[1]
    return not any(other.startswith(f"{option}=") for other in have)


def parser():
    parser = argparse.ArgumentParser(prog="vm/kernel", description="Make kernels in the cache, and print the build tree (KDIR) of each.")
    parser.add_argument("kernel", nargs="*", help="series or Debian release (default: all pinned)")
    parser.add_argument("--names", action="store_true", help="only print the names of the entries in the cache (default: of all kernels)")
    parser.add_argument("--missing", action="store_true", help="only print the kernels that are not in the cache (default: of all kernels)")
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
