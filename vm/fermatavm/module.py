# SPDX-License-Identifier: GPL-2.0
"""Build fermata.ko for a stock kernel into build/module-SERIES/, and compare its Rust symbols with the kernel's."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys

from .common import BUILD, JOBS, TOP, die, locked, run, say, working
from .kernel import kernel_named


def build(kernel, clippy=False, strict=False, copy=None):
    """Build against `kernel`; return the path of fermata.ko. Clippy runs in a separate folder.

    A strict build fails if there is a warning. Strict builds and clippy show all warnings: they start from nothing unless the folder is
    clean. The `copy` does not change while another run builds.
    """
    return build_in(BUILD / f"{'clippy' if clippy else 'module'}-{kernel.name}", kernel, TOP, clippy, strict, copy) / "fermata.ko"


def build_in(out, kernel, source, clippy=False, strict=False, copy=None):
    """Build the module whose Kbuild is in `source`; return the folder `out`."""
    with locked(BUILD / f".{out.name}.lock"):
        # A build in the folder had warnings, failed or was interrupted.
        unclean = out / ".unclean"
        if (strict or clippy) and unclean.exists():
            shutil.rmtree(out)
        out.mkdir(parents=True, exist_ok=True)
        was_clean = not unclean.exists()
        unclean.touch()
        options = [*kernel.make_options, *(["CLIPPY=1"] if clippy else [])]
        cmd = ["make", "-C", kernel.build, f"M={source}", f"MO={out}", f"-j{JOBS}", "-s", *options, "modules"]
        with working(f"building {out.name} (up to half a minute)", after=5):
            done = run(cmd, check=False, capture_output=True, text=True)
        warnings = done.stdout + done.stderr
        has_warnings = bool(re.search("warning", warnings, re.I))
        if was_clean and not done.returncode and not has_warnings:
            unclean.unlink()
        if copy and not done.returncode:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(out / "fermata.ko", copy)
    sys.stderr.write(warnings)
    if done.returncode:
        die(f"the module does not build for {kernel.info['release']}")
    if strict and has_warnings:
        die("the module builds with warnings")
    return out


def document(kernel):
    """Make the module's documentation in build/rustdoc-SERIES/; fail on any warning. Return the path of its first page.

    kbuild has a target for rustdoc only in its own tree. Here rustdoc runs with the rustc command line that kbuild has saved.
    """
    build(kernel)
    out = BUILD / f"module-{kernel.name}"
    saved = (out / "rust/.fermata_main.o.cmd").read_text().splitlines()[0].partition(":=")[2]
    words = shlex.split(saved)
    program = words.index("rustc")
    environment = dict(word.split("=", 1) for word in words[:program]) | {"RUSTC_BOOTSTRAP": "1"}
    flags = [word for word in words[program + 1 :] if not word.startswith("--emit=")]
    at = flags.index("--out-dir")
    del flags[at : at + 2]
    pages = BUILD / f"rustdoc-{kernel.name}"
    shutil.rmtree(pages, ignore_errors=True)
    # Private items are documented, too, so links to them are valid.
    options = ["--crate-name", "fermata", "--document-private-items", "--output", pages, "-Dwarnings", "-Arustdoc::private_intra_doc_links"]
    if run(["rustdoc", *flags, *options], check=False, cwd=out, env=os.environ | environment).returncode:
        die("the module's documentation does not build, or not without warnings")
    return pages / "fermata/index.html"


def check_symbols(module, kernel):
    """Fail if the kernel does not export a symbol under exactly this name. Without MODVERSIONS, the hash in a Rust symbol's name reveals
    a different layout."""
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


def parser():
    parser = argparse.ArgumentParser(prog="vm/build-module", description=__doc__)
    parser.add_argument("kernel", nargs="?", default="7.2", help="series or Debian release (default 7.2)")
    parser.add_argument("--clippy", action="store_true", help="check with clippy and the kernel's lints instead")
    parser.add_argument("--rustdoc", action="store_true", help="make the module's documentation instead; warnings are errors")
    parser.add_argument("--symbols", action="store_true", help="also compare undefined symbols with Module.symvers")
    parser.add_argument("--strict", action="store_true", help="fail on any warning, also one of an earlier build")
    return parser


def main():
    args = parser().parse_args()
    kernel = kernel_named(args.kernel).ensure()
    if args.rustdoc:
        print(str(document(kernel)).removeprefix(f"{TOP}/"))
        return
    module = build(kernel, args.clippy, args.strict)
    if args.symbols:
        check_symbols(module, kernel)
    print(str(module).removeprefix(f"{TOP}/"))


if __name__ == "__main__":
    main()
