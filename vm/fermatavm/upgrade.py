# SPDX-License-Identifier: GPL-2.0
"""Repack Debian's packages of build/deb with the next version, in build/deb/next, for the test of an upgrade (packaging/tests/upgrade)."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .common import BUILD, die
from .dkms import next_version, version

DEB = BUILD / "deb"
NEXT = DEB / "next"


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def replace(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def repack(package, old, new):
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        run("dpkg-deb", "--raw-extract", package, tree)
        for name in ("control", "postinst", "prerm"):
            if (tree / "DEBIAN" / name).exists():
                replace(tree / "DEBIAN" / name, old, new)
        for source in tree.glob("usr/src/*"):
            replace(source / "dkms.conf", old, new)
            source.rename(source.with_name(source.name.replace(old, new)))
        (tree / "DEBIAN/md5sums").unlink()
        run("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, NEXT / package.name.replace(old, new))


def main():
    old, new = version(), next_version()
    packages = sorted(DEB.glob(f"*_{old}_*.deb"))
    if not packages:
        die("there are no packages in build/deb: run packaging/deb")
    shutil.rmtree(NEXT, ignore_errors=True)
    NEXT.mkdir()
    for package in packages:
        repack(package, old, new)


if __name__ == "__main__":
    sys.exit(main())
