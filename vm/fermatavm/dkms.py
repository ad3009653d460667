# SPDX-License-Identifier: GPL-2.0
"""Build and sign fermata.ko by DKMS as on a Debian machine, whose headers have no Rust metadata.

The machine's trees consist of links below build/dkms. The headers are the kernel's build tree without the files that Debian's headers
lack. The metadata are those of the cache (FERMATA_METADATA), since building them takes a minute. A kernel
for which the module cannot be built is skipped, so that dpkg can configure the kernel's headers, and DKMS says what is missing. Results are build/dkms/fermata.ko, signed by a key that DKMS made, unsigned.ko without the signature, and tarballs
for `dkms ldtarball`, also one of the next version, with another description of the module. An argument names a kernel other than 7.2; with --ensure, nothing is built if an earlier run has left its results.
"""

import os
import shutil
import subprocess
import sys

from .common import BUILD, TOP, die, locked, say
from .kernel import kernel_named

OUT = BUILD / "dkms"
# The status of dkms if a kernel is none of the module's.
SKIPPED = 77
TARBALL = OUT / "fermata.dkms.tar.gz"
# The last result of a run.
NEXT = OUT / "next.dkms.tar.gz"
DESCRIPTION = "Shares a preemptible accelerator card between processes"


def version():
    return subprocess.run(["make", "-s", "-C", TOP / "packaging", "version"], capture_output=True, text=True, check=True).stdout.strip()


def next_version():
    """Return the version with a higher last number."""
    first, _, last = version().rpartition(".")
    return f"{first}.{int(last) + 1}"


def headers(kernel, release):
    """Make a tree like that of linux-headers-RELEASE."""
    tree = OUT / "modules" / release / "build"
    (tree / "scripts").mkdir(parents=True)
    for path in kernel.build.iterdir():
        if path.name not in ("rust", "scripts", "Makefile"):
            (tree / path.name).symlink_to(path)
    for path in (kernel.build / "scripts").iterdir():
        if path.name != "target.json":
            (tree / "scripts" / path.name).symlink_to(path)
    (tree / "Makefile").write_text((kernel.build / "Makefile").read_text().replace(str(kernel.build), str(tree)))
    return tree


class Dkms:
    """Runs dkms with its own trees."""

    def __init__(self, release, version):
        self.release = release
        self.name = f"fermata/{version}"
        self.source = OUT / "src" / self.name.replace("/", "-")
        self.log = OUT / "tree" / self.name / "build/make.log"
        make = ["make", "-s", "-C", TOP / "packaging", "install-dkms", f"VERSION={version}", f"DESTDIR={OUT}/root", f"dkmsdir=/../src/{self.source.name}"]
        subprocess.run(make, check=True)

    def run(self, *args, output=sys.stderr, **settings):
        cmd = ["dkms", *args, "--dkmstree", OUT / "tree", "--sourcetree", OUT / "src", "--installtree", OUT / "modules"]
        keys = {"mok_signing_key": f"{OUT}/mok.key", "mok_certificate": f"{OUT}/mok.pub", "FERMATA_METADATA_CACHE": f"{OUT}/cache"}
        error = subprocess.STDOUT if output == subprocess.PIPE else None
        return subprocess.run(cmd, env=os.environ | keys | settings, stdout=output, stderr=error, stdin=subprocess.DEVNULL, text=True)

    def __call__(self, *args, **settings):
        return self.run(*args, **settings).returncode

    def build(self, **settings):
        return self("build", self.name, "-k", self.release, **settings)

    def add(self):
        if self("add", self.name):
            die("dkms add failed")

    def must_build(self, metadata):
        """Return the module, which is built with the metadata of this folder."""
        if self.build(FERMATA_METADATA=str(metadata)):
            sys.stderr.write(self.log.read_text())
            die("DKMS does not build the module")
        return OUT / "tree" / self.name / self.release / "x86_64/module/fermata.ko"

    def pack(self, tarball):
        if self("mktarball", self.name, "-k", self.release, "--binaries-only", "--archive", tarball.name):
            die("dkms mktarball failed")
        shutil.copy(OUT / "tree" / self.name / "tarball" / tarball.name, tarball)

    def must_skip(self, words, **settings):
        """Check that the kernel is skipped with one message that has `words`: by a build, and by what dpkg runs for the kernel's headers."""
        for args, wanted in [("build", self.name), SKIPPED], [("autoinstall",), 0]:
            done = self.run(*args, "-k", self.release, output=subprocess.PIPE, **settings)
            sys.stderr.write(done.stdout)
            if done.returncode != wanted or done.stdout.count(words) != 1:
                die(f"dkms {args[0]}: status {done.returncode}, and {wanted} with one message is expected: {words}")
        say(f"skipped as expected: {words}")

    def must_fail(self, words, **settings):
        """Check that a build fails with a message that has `words`."""
        if not self.build(**settings):
            die(f"DKMS builds where it cannot: {words}")
        log = self.log.read_text()
        if words not in log:
            sys.stderr.write(log)
            die(f"DKMS does not say: {words}")
        say(f"refused as expected: {words}")


def without(program, instead=None):
    """Return a PATH that lacks a program, or has a script instead."""
    folder = OUT / f"without-{program}"
    folder.mkdir()
    for path in [*os.scandir("/usr/bin"), *os.scandir("/usr/sbin")]:
        if path.name != program and not (folder / path.name).is_symlink():
            (folder / path.name).symlink_to(path.path)
    if instead:
        (folder / program).write_text(f"#!/bin/sh\n{instead}\n")
        (folder / program).chmod(0o755)
    return str(folder)


def build(name):
    kernel = kernel_named(name).ensure()
    release = kernel.info["release"]
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "tree").mkdir(parents=True)
    tree = headers(kernel, release)
    dkms = Dkms(release, version())
    dkms.add()
    dkms.must_skip(f"apt-get install linux-source-{kernel.series}")
    dkms.must_skip("rustc here is 'rustc 1.0.0'", PATH=without("rustc", "echo rustc 1.0.0"))
    dkms.must_fail("cannot be built: apt-get install bindgen", PATH=without("bindgen"), FERMATA_KERNEL_SOURCE=str(kernel.src))
    settings = OUT / "settings"
    settings.write_text('FERMATA_METADATA="nowhere/$KERNELVER"\n')
    dkms.must_fail(f"no nowhere/{release}/rust/libkernel.rmeta", FERMATA_DKMS_SETTINGS=str(settings))
    built = dkms.must_build(kernel.build)
    shutil.copy(built, OUT / "fermata.ko")
    signer = subprocess.run(["modinfo", "-F", "signer", built], capture_output=True, text=True, check=True).stdout.strip()
    if signer != "DKMS module signing key":
        die(f"DKMS did not sign the module (signer: {signer or 'none'})")
    shutil.copy(built, OUT / "unsigned.ko")
    subprocess.run(["strip", "--strip-debug", OUT / "unsigned.ko"], check=True)  # also removes the signature
    dkms.pack(TARBALL)
    build_next(release, kernel.build)
    print(f"{tree.parent.name}: {OUT.name}/fermata.ko, signed by {signer}")


def build_next(release, metadata):
    """Build the next version beside this one."""
    dkms = Dkms(release, next_version())
    main = dkms.source / "rust/fermata_main.rs"
    text = main.read_text()
    if DESCRIPTION not in text:
        die(f"rust/fermata_main.rs has no description '{DESCRIPTION}'")
    main.write_text(text.replace(DESCRIPTION, f"{DESCRIPTION} (next)"))
    dkms.add()
    dkms.must_build(metadata)
    dkms.pack(NEXT)


def ensure():
    with locked(BUILD / ".dkms.lock"):
        if not NEXT.exists():
            build("7.2")


def main(name="7.2"):
    if name == "--ensure":
        return ensure()
    with locked(BUILD / ".dkms.lock"):
        build(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
