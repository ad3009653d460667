# SPDX-License-Identifier: GPL-2.0
"""Debian packages that one test needs, as a folder of files that `vm/boot --layer` lays over the Debian system of the build root.

The folder is in the cache and is made on first use. The packages' scripts do not run. PACKAGE/SUITE is the
package of another suite of Debian.
"""

import hashlib
import shutil
from pathlib import Path

from .common import CACHE, host_path, locked, need_space, run, say

SOURCES = Path("/etc/apt/sources.list")


class Unreachable(Exception):
    """Debian's archive cannot be reached."""


def key(packages):
    """The packages, and the Debian system that has those on which they depend."""
    installed = Path("/var/lib/dpkg/status").read_bytes()
    return hashlib.sha256(" ".join(packages).encode() + installed).hexdigest()[:12]


def apt(folder, suites, kinds=("deb",)):
    """Return the command apt-get, with lists in `folder` of the build root's suite and of `suites`. Raise Unreachable."""
    for name in ("lists/partial", "archives/partial", "sources"):
        (folder / name).mkdir(parents=True)
    _, *options, _, component = SOURCES.read_text().splitlines()[0].split()
    lines = [" ".join([kind, *options, suite, component]) for suite in suites for kind in kinds]
    (folder / "sources/suites.list").write_text("".join(f"{line}\n" for line in lines))
    places = {"State::Lists": "lists", "Cache": "", "Cache::archives": "archives", "Etc::SourceParts": "sources"}
    # The build root is read-only, and apt cannot become another user in a user namespace.
    options = [*(f"Dir::{key}={folder / place}" for key, place in places.items()), "APT::Sandbox::User=root", "Debug::NoLocking=1"]
    command = ["apt-get", *(word for option in options for word in ("-o", option))]
    if run([*command, "-o", "APT::Update::Error-Mode=any", "update"], log=folder / "log", check=False).returncode:
        raise Unreachable(f"Debian's archive cannot be reached: see {host_path(folder / 'log')}")
    return command


def download(packages, folder):
    """Download the packages, and those on which they depend and the build root has not. Return the files."""
    suites = {suite for _, _, suite in (name.partition("/") for name in packages) if suite}
    command = apt(folder, suites)
    run([*command, "--yes", "--no-install-recommends", "--download-only", "install", *packages], log=folder / "log")
    return sorted((folder / "archives").glob("*.deb"))


def make(name, packages):
    """Return the folder with the files of `packages`. Raise Unreachable."""
    root = CACHE / f"layer-{name}-{key(packages)}"
    with locked(root.with_name(f"{root.name}.lock")):
        if not root.exists():
            need_space(1)
            say(f"downloading {', '.join(packages)}")
            temporary = root.with_name(f"{root.name}.tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            for file in download(packages, temporary):
                run(["dpkg-deb", "--extract", file, temporary / "root"])
            (temporary / "root").rename(root)
            shutil.rmtree(temporary)
    return root

