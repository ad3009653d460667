# SPDX-License-Identifier: GPL-2.0
"""Programs for both ends: the card server for the host side, tests and tools for build/guest, which is laid over the guest's /."""

import shutil
import tomllib

from .common import BUILD, JOBS, TOP, die, locked, run

TARGET = "x86_64-unknown-linux-gnu"


def members():
    manifest = TOP / "Cargo.toml"
    if not manifest.exists():
        return []
    patterns = tomllib.loads(manifest.read_text())["workspace"]["members"]
    return sorted({path for pattern in patterns for path in TOP.glob(pattern) if (path / "Cargo.toml").exists()})


def cargo(*args, env=None):
    done = run(["cargo", *args, "--locked", "--quiet", "-j", JOBS], check=False, cwd=TOP, env=env)
    if done.returncode:
        die(f"cargo {args[0]} failed")


def build_card():
    """The card server, build/cargo/release/fermata-card."""
    if TOP / "card" in members():
        with locked(BUILD / ".guest.lock"):
            cargo("build", "--release", "--package", "fermata-card", "--bins")


def build(kernel):
    """Static programs for the guest; each part builds nothing when nothing changed."""
    with locked(BUILD / ".guest.lock"):
        bins = BUILD / "guest/bin"
        bins.mkdir(parents=True, exist_ok=True)
        tools = [path for path in members() if path.parent == TOP / "tools"]
        if tools:
            flags = f"--config=target.{TARGET}.rustflags=['-Ctarget-feature=+crt-static']"
            names = [tomllib.loads((path / "Cargo.toml").read_text())["package"]["name"] for path in tools]
            cargo("build", "--release", "--target", TARGET, flags, "--bins", *(f"--package={name}" for name in names))
            for file in (BUILD / f"cargo/{TARGET}/release").iterdir():
                if file.is_file() and file.stat().st_mode & 0o100 and not file.suffix:
                    copy(file, bins / file.name)
        if (TOP / "selftests/Makefile").exists():
            out = BUILD / "selftests"
            cmd = ["make", "-s", f"-j{JOBS}", "-C", TOP / "selftests", f"OUT={out}", f"KSFT_INC={kernel.kselftest}"]
            if run(cmd, check=False).returncode:
                die("the selftests do not build")
            (BUILD / "guest/selftests").mkdir(exist_ok=True)
            for file in out.iterdir():
                if file.is_file() and file.stat().st_mode & 0o100:
                    copy(file, BUILD / "guest/selftests" / file.name)


def copy(source, dest):
    if not dest.exists() or dest.stat().st_mtime < source.stat().st_mtime:
        shutil.copy2(source, dest)
