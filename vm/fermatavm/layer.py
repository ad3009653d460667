# SPDX-License-Identifier: GPL-2.0
"""Debian packages that one test needs, as a folder of files that `vm/boot --layer` lays over the Debian system of the build root.

The folder is in the cache and is made on first use. The packages' scripts do not run. PACKAGE/SUITE is the package of another suite of Debian.
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


def sources(suites):
    """The build root's line for its own suite, for each of `suites`."""
    kind, *options, _, component = SOURCES.read_text().splitlines()[0].split()
    return "".join(f"{' '.join([kind, *options, suite, component])}\n" for suite in suites)


def download(packages, folder):
    """Download the packages, and those on which they depend and the build root has not. Return the files."""
    for name in ("lists/partial", "archives/partial", "sources"):
        (folder / name).mkdir(parents=True)
    (folder / "sources/suites.list").write_text(sources({suite for _, _, suite in (name.partition("/") for name in packages) if suite}))
    places = [f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}", f"Dir::Cache::archives={folder}/archives", f"Dir::Etc::SourceParts={folder}/sources"]
    # The build root is read-only, and apt cannot become another user in a user namespace.
    options = [word for option in [*places, "APT::Sandbox::User=root", "Debug::NoLocking=1"] for word in ("-o", option)]
    update = ["apt-get", *options, "-o", "APT::Update::Error-Mode=any", "update"]
    if run(update, log=folder / "log", check=False).returncode:
        raise Unreachable(f"Debian's archive cannot be reached: see {host_path(folder / 'log')}")
    run(["apt-get", *options, "--yes", "--no-install-recommends", "--download-only", "install", *packages], log=folder / "log")
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

