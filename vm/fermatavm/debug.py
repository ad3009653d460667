# SPDX-License-Identifier: GPL-2.0
"""Kernels with other options, made from the source of a stock kernel: "7.2-debug" and "7.2-rt" beside "7.2".

The entry is kernel-7.2-debug-KEY/ with the same parts as that of a stock kernel; its source is the stock kernel's.
"""

import hashlib
import inspect
import json
import shutil
from functools import cached_property

from .common import CACHE, JOBS, TOP, Timer, die, host_path, need_space, run, say
from .kernel import Kernel, toolchain

# What all of them have.
CONFIG = TOP / "vm/guest.config"
SPACE_GIB = 4


class BuiltKernel(Kernel):
    """Built by clang, and so must be its modules. Its options are in a file of vm/, named after the suffix of the series."""

    suffix = None
    make_options = ("LLVM=1",)
    # 256 terminals of the old kind, which nobody opens, are eleven seconds of each boot.
    append = "pty.legacy_count=0"

    def __init__(self, name):
        self.stock = Kernel(name.removesuffix(self.suffix))
        self.name, self.series = name, self.stock.series + self.suffix
        self.release, self.version = None, None
        self.configs = [CONFIG, TOP / f"vm/{self.suffix.removeprefix('-')}.config"]
        options = "".join(config.read_text() for config in self.configs)
        made_by = f"{self.stock.dir.name} {toolchain()} {options} {inspect.getsource(make)}"
        self.dir = CACHE / f"kernel-{self.series}-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}"

    @cached_property
    def src(self):
        return self.stock.src

    def make(self):
        self.stock.ensure()
        make(self)


class DebugKernel(BuiltKernel):
    """Looks for mistakes, and tells who asks what runs of its modules (KCOV)."""

    suffix = "-debug"
    make_options = (*BuiltKernel.make_options, "KCOV_INSTRUMENT=y")
    # Freed pages are filled with a pattern, and looked at again when they are next given out. Slabs with checks keep no
    # lists of free objects for each processor, where kmemleak would find stale pointers to what has leaked.
    append = f"page_poison=1 slab_debug=F,kmalloc-* {BuiltKernel.append}"


class RealTimeKernel(BuiltKernel):
    """PREEMPT_RT and kCFI."""

    suffix = "-rt"


BUILT = (DebugKernel, RealTimeKernel)


def make(kernel):
    need_space(SPACE_GIB)
    clock = Timer()
    if kernel.dir.exists():
        say(f"kernel {kernel.series}: a half-made entry is made again")
        shutil.rmtree(kernel.dir)
    kernel.build.mkdir(parents=True)
    log = kernel.dir / "log"
    make_cmd = ["make", "-C", kernel.src, f"O={kernel.build}", "LLVM=1", f"-j{JOBS}", "KBUILD_BUILD_TIMESTAMP=fermata"]
    say(f"kernel {kernel.series}: building (about 10 minutes on 2 cores)")
    run([*make_cmd, "tinyconfig"], log=log)
    config = kernel.build / ".config"
    merge = ["bash", kernel.src / "scripts/kconfig/merge_config.sh", "-m", "-O", kernel.build, config, *kernel.configs]
    run(merge, log=log, cwd=kernel.src)
    run([*make_cmd, "olddefconfig"], log=log)
    for wanted in kernel.configs:
        check_config(wanted, config.read_text().splitlines())
    run([*make_cmd, "bzImage", "modules"], log=log)
    run([*make_cmd, f"INSTALL_MOD_PATH={kernel.dir}/modules", "INSTALL_MOD_STRIP=1", "modules_install"], log=log)
    shutil.copy(kernel.build / "arch/x86/boot/bzImage", kernel.vmlinuz)
    release = (kernel.build / "include/config/kernel.release").read_text().strip()
    info = {"series": kernel.series, "release": release, "version": release}
    (kernel.dir / "info.json").write_text(json.dumps(info, indent=1) + "\n")
    say(f"kernel {kernel.series}: {release} ready ({clock}); log: {host_path(log)}")


def check_config(config, have):
    """An option that a newer kernel renamed, or that lacks what it depends on, would be dropped in silence."""
    wanted = [line for line in config.read_text().splitlines() if line.startswith("CONFIG_") or line.endswith("is not set")]
    missing = [line for line in wanted if line not in have and not (line.startswith("#") and off(line, have))]
    if missing:
        die(f"{config.relative_to(TOP)}: the kernel does not take {', '.join(missing)}")


def off(line, have):
    """An option that depends on what is not there has no line at all."""
    option = line.split()[1]
    return not any(other.startswith(f"{option}=") for other in have)
