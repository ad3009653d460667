# SPDX-License-Identifier: GPL-2.0
"""Programs for both ends: the card server for the host side, tests and tools for build/guest, which is laid over the guest's /."""

import shutil
import subprocess
import tomllib

from .common import BUILD, JOBS, TOP, die, locked, run, say

TARGET = "x86_64-unknown-linux-gnu"
STATIC = ["--release", "--target", TARGET, f"--config=target.{TARGET}.rustflags=['-Ctarget-feature=+crt-static']"]
# The guest's programs: static, so they run on either side.
PARTS = BUILD / "guest"
PROGRAMS = PARTS / "bin"
# Like the guest's programs: so what both are made of is compiled once.
CARD = BUILD / f"cargo/{TARGET}/release/fermata-card"


def members():
    manifest = TOP / "Cargo.toml"
    if not manifest.exists():
        return []
    patterns = tomllib.loads(manifest.read_text())["workspace"]["members"]
    return sorted({path for pattern in patterns for path in TOP.glob(pattern) if (path / "Cargo.toml").exists()})


def cargo(*args):
    return run(["cargo", *args, "--locked", "--quiet", "-j", JOBS], check=False, cwd=TOP).returncode == 0


def build_card():
    """The card server."""
    with locked(BUILD / ".guest.lock"):
        cargo("build", *STATIC, "--package", CARD.name, "--bins") or die("the card server does not build")


def build(kernel):
    """Static programs for the guest; each part builds nothing when nothing changed.

    A part that does not build is left out with a message: a run that needs none of it goes on, one that does fails at once.
    """
    with locked(BUILD / ".guest.lock"):
        for part, make in (("bin", tools), ("selftests", selftests), ("examples", examples)):
            folder = PARTS / part
            folder.mkdir(parents=True, exist_ok=True)
            built = make(kernel)
            for old in folder.iterdir():
                if old.name not in {file.name for file in built}:
                    old.unlink()
            for file in built:
                copy(file, folder / file.name)


def payload(which):
    """What goes into the machine, with its place there: unpacking all of it takes the debug kernel half a minute."""
    return {"all": [(PARTS, "")], "selftests": [(PARTS / "selftests", "selftests")], "none": []}[which]


def programs(folder):
    return [file for file in folder.iterdir() if file.is_file() and file.stat().st_mode & 0o100 and not file.suffix]


def tools(_kernel):
    """The binaries of every workspace member below tools/."""
    names = [tomllib.loads((path / "Cargo.toml").read_text())["package"]["name"] for path in members() if path.parent == TOP / "tools"]
    if not names:
        return []
    if not cargo("build", *STATIC, "--bins", *(f"--package={name}" for name in names)):
        say("the tools do not build: the machine goes without them")
        return []
    return [file for file in programs(CARD.parent) if file != CARD]


def selftests(kernel):
    """What selftests/Makefile makes."""
    out = BUILD / "selftests"
    cmd = ["make", "-s", f"-j{JOBS}", "-C", TOP / "selftests", f"OUT={out}", f"KSFT_INC={kernel.kselftest}"]
    if not (TOP / "selftests/Makefile").exists() or run(cmd, check=False).returncode:
        say("the selftests do not build: the machine goes without them")
        return []
    return programs(out)


def examples(_kernel):
    """What examples/Makefile makes, and libfermata's examples as NAME-rust."""
    out = BUILD / "examples"
    made = run(["make", "-s", "-C", TOP / "examples", f"OUT={out}", "LDFLAGS=-static"], check=False).returncode == 0
    if not made or not cargo("build", *STATIC, "--examples", "--package=libfermata"):
        say("the examples do not build: the machine goes without them")
        return []
    for source in (TOP / "tools/libfermata/examples").glob("*.rs"):
        copy(BUILD / f"cargo/{TARGET}/release/examples/{source.stem}", out / f"{source.stem}-rust")
    return programs(out)


def copy(source, dest):
    """Programs without what is for debuggers, which is most of them: the guest has its files in memory. Scripts and programs of another
    machine stay as they are."""
    if not dest.exists() or dest.stat().st_mtime < source.stat().st_mtime:
        shutil.copy2(source, dest)
        run(["strip", "--strip-debug", dest], check=False, stderr=subprocess.DEVNULL)
