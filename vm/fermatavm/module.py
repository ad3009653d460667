# SPDX-License-Identifier: GPL-2.0
"""Build fermata.ko for a stock kernel into build/module-SERIES/, and compare its Rust symbols with the kernel's."""

import argparse
import subprocess

from .common import BUILD, JOBS, TOP, die, locked, run, say
from .kernel import Kernel


def build(kernel, clippy=False, target="modules"):
    """Build against `kernel`; returns the path of fermata.ko. Clippy runs in a folder of its own."""
    out = BUILD / f"{'clippy' if clippy else 'module'}-{kernel.series if kernel.version else kernel.release}"
    out.mkdir(parents=True, exist_ok=True)
    with locked(BUILD / f".{out.name}.lock"):
        done = run(
            ["make", "-C", kernel.build, f"M={TOP}", f"MO={out}", f"-j{JOBS}", *(["CLIPPY=1"] if clippy else []), target],
            check=False,
        )
    if done.returncode:
        die(f"the module does not build for {kernel.info['release']}")
    return out / "fermata.ko"


def check_symbols(module, kernel):
    """There is no MODVERSIONS: a Rust symbol that the kernel does not export under this very name shows another layout."""
    nm = subprocess.run(["nm", "-u", module], capture_output=True, text=True, check=True).stdout
    wanted = {line.split()[-1] for line in nm.splitlines()}
    exported = {line.split("\t")[1] for line in (kernel.build / "Module.symvers").read_text().splitlines()}
    missing = sorted(wanted - exported)
    for name in missing:
        say(f"{name}: not exported by {kernel.info['release']}")
    if missing:
        die(f"{len(missing)} symbols of the module are not those of the kernel: rustc or configuration differ")
    rust = sum(name.startswith("_R") for name in wanted)
    say(f"kernel {kernel.series}: {len(wanted)} undefined symbols, {rust} of them Rust, all exported")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", nargs="?", default="7.2", help="series or Debian release (default 7.2)")
    parser.add_argument("--clippy", action="store_true", help="check with clippy and the kernel's lints instead")
    parser.add_argument("--symbols", action="store_true", help="also compare undefined symbols with Module.symvers")
    args = parser.parse_args()
    kernel = Kernel(args.kernel).ensure()
    module = build(kernel, args.clippy)
    if args.symbols:
        check_symbols(module, kernel)
    print(str(module).removeprefix(f"{TOP}/"))


if __name__ == "__main__":
    main()
