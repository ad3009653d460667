# SPDX-License-Identifier: GPL-2.0
"""Builds programs: the card server for the host, and tests and tools for build/guest, which is laid over the guest's root."""

import shutil
import subprocess
import sys
import tomllib

from .common import BUILD, JOBS, TOP, die, locked, run, say

CARGO = BUILD / "cargo/x86_64-unknown-linux-gnu"


class Profile:
    """Where programs are, for tests or (`release`) for benchmarks. Programs are static, so that the guest's programs run on the host,
    too."""

    def __init__(self, release):
        self.built = CARGO / ("release" if release else "debug")
        self.parts = BUILD / ("guest-release" if release else "guest")
        self.programs = self.parts / "bin"
        self.card = self.built / "fermata-card"
        # The whole workspace is built, as `cargo test` builds it: another choice of packages would enable other features of
        # dependencies, and compile them again.
        self.all = [] if release else ["--workspace", "--bins", "--examples"]
        self.release = ["--release"] if release else []

    def build(self, *wanted):
        """Build by cargo; return whether the build succeeded."""
        return cargo("build", *self.release, *(self.all or wanted))


TESTED, MEASURED = Profile(False), Profile(True)


def members():
    manifest = TOP / "Cargo.toml"
    if not manifest.exists():
        return []
    patterns = tomllib.loads(manifest.read_text())["workspace"]["members"]
    return sorted({path for pattern in patterns for path in TOP.glob(pattern) if (path / "Cargo.toml").exists()})


def cargo(*args):
    return run(["cargo", *args, "--locked", "--quiet", "-j", JOBS], check=False, cwd=TOP).returncode == 0


def build_card(profile):
    """Build the card server."""
    with locked(BUILD / ".guest.lock"):
        profile.build("--package", profile.card.name, "--bins") or die("the card server does not build")


def build(kernel, profile):
    """Build the guest's static programs, as far as anything has changed.

    A part that does not build is left out with a message: a run that does not need the part goes on, a run that does fails at once.
    """
    with locked(BUILD / ".guest.lock"):
        for part, make in (("bin", tools), ("selftests", selftests), ("examples", examples)):
            folder = profile.parts / part
            folder.mkdir(parents=True, exist_ok=True)
            built = make(kernel, profile)
            for old in folder.iterdir():
                if old.name not in {file.name for file in built}:
                    old.unlink()
            for file in built:
                copy(file, folder / file.name)


def payload(which, profile):
    """Return the programs to put into the machine, and where. Not always all of them: the debug kernel takes half a minute to unpack
    all."""
    return {"all": [(profile.parts, "")], "selftests": [(profile.parts / "selftests", "selftests")], "none": []}[which]


def programs(folder):
    return [file for file in folder.iterdir() if file.is_file() and file.stat().st_mode & 0o100 and not file.suffix]


def tools(_kernel, profile):
    """Build the binaries of all workspace members below tools/."""
    paths = [path for path in members() if path.parent == TOP / "tools"]
    names = [tomllib.loads((path / "Cargo.toml").read_text())["package"]["name"] for path in paths]
    if not names:
        return []
    if not profile.build("--bins", *(f"--package={name}" for name in names)):
        say("the tools do not build: the machine goes without them")
        return []
    binaries = [name for path, name in zip(paths, names, strict=True) if (path / "src/main.rs").exists()]
    binaries += [file.stem for path in paths for file in path.glob("src/bin/*.rs")]
    return [profile.built / name for name in binaries]


def selftests(kernel, _profile):
    """Build the programs of selftests/Makefile."""
    out = BUILD / "selftests"
    cmd = ["make", "-s", f"-j{JOBS}", "-C", TOP / "selftests", f"OUT={out}", f"KSFT_INC={kernel.kselftest}"]
    if not (TOP / "selftests/Makefile").exists() or run(cmd, check=False).returncode:
        say("the selftests do not build: the machine goes without them")
        return []
    return programs(out)


def examples(_kernel, profile):
    """Build the programs of examples/Makefile, and libfermata's examples as NAME-rust."""
    out = BUILD / "examples"
    made = run(["make", "-s", "-C", TOP / "examples", f"OUT={out}", "LDFLAGS=-static"], check=False).returncode == 0
    if not made or not profile.build("--examples", "--package=libfermata"):
        say("the examples do not build: the machine goes without them")
        return []
    for source in (TOP / "tools/libfermata/examples").glob("*.rs"):
        copy(profile.built / f"examples/{source.stem}", out / f"{source.stem}-rust")
    return programs(out)


def copy(source, dest):
    """Copy a program without its debugging information, since the guest has its files in memory. Scripts and programs for other
    machines are copied unchanged."""
    if not dest.exists() or dest.stat().st_mtime < source.stat().st_mtime:
        shutil.copy2(source, dest)
        run(["strip", "--strip-debug", dest], check=False, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(not TESTED.build())
