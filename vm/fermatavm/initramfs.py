# SPDX-License-Identifier: GPL-2.0
"""Writes a busybox initramfs as an uncompressed newc archive: unpacking is slow under TCG."""

import lzma
import os
import stat
import subprocess
import tempfile
from pathlib import Path

from .common import TOP

ON_DEMAND = ["virtio_pci", "virtio_console", "virtio_iommu", "vfio_pci", "vfio_iommu_type1", "aer_inject", "button", "virtio_blk", "fuse"]


class Archive:
    """An archive in the newc format, whose entries belong to root."""

    def __init__(self, file):
        self.file, self.count, self.dirs = file, 0, {""}

    def _entry(self, name, mode, data):
        self.count += 1
        fields = [self.count, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        self.file.write(head + b"\0" * (-len(head) % 4))
        self.file.write(data)
        self.file.write(b"\0" * (-len(data) % 4))

    def parents(self, name):
        parent = os.path.dirname(name)
        if parent not in self.dirs:
            self.dirs.add(parent)
            self.parents(parent)
            self._entry(parent, stat.S_IFDIR | 0o755, b"")

    def write(self, name, data, mode=0o644):
        self.parents(name)
        self._entry(name, stat.S_IFREG | mode, data)

    def link(self, name, target):
        self.parents(name)
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def folder(self, name):
        self.parents(name + "/x")

    def add(self, path, name):
        """Add a file, a link or a tree."""
        if path.is_symlink():
            self.link(name, os.readlink(path))
        elif path.is_dir():
            self.folder(name)
            for child in sorted(path.iterdir()):
                self.add(child, f"{name}/{child.name}".lstrip("/"))
        else:
            self.write(name, path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)

    def close(self):
        self._entry("TRAILER!!!", 0, b"")


def index(kernel):
    """Return the kernel's modules: {name: [path, paths of the modules that it needs...]}, without built-in modules."""
    found = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        found[path.rsplit("/", 1)[-1].split(".")[0].replace("-", "_")] = [path, *needs.split()]
    return found


def add_modules(archive, kernel, wanted):
    """Add modules, uncompressed, with an index of these modules only."""
    release = kernel.info["release"]
    with tempfile.TemporaryDirectory() as tmp:
        lib = Path(tmp) / "lib/modules" / release
        lib.mkdir(parents=True)
        known = index(kernel)
        for path in {path for name in wanted for path in known.get(name, [])}:
            dest = lib / path.removesuffix(".xz")
            dest.parent.mkdir(parents=True, exist_ok=True)
            data = (kernel.modules / path).read_bytes()
            dest.write_bytes(lzma.decompress(data) if path.endswith(".xz") else data)
        subprocess.run(["depmod", "-b", tmp, release], check=True, stderr=subprocess.DEVNULL)
        archive.add(Path(tmp) / "lib", "lib")


def build(path, kernel, config, load, command, payload):
    """Write the archive: `config` becomes /etc/fermata, `command` becomes /command, `payload` is pairs of source and name.

    Modules in `load` that are built into the kernel are left out.
    """
    with open(path, "wb") as file:
        archive = Archive(file)
        for name in ("bin", "dev", "proc", "sys", "tmp", "run", "root", "etc", "mnt"):
            archive.folder(name)
        archive.add(Path("/usr/bin/busybox"), "bin/busybox")
        archive.link("bin/sh", "busybox")
        archive.add(TOP / "vm/init", "init")
        archive.write("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\ntenant:x:1000:1000::/tmp:/bin/sh\nother:x:1001:1001::/tmp:/bin/sh\n")
        archive.write("etc/group", b"root:x:0:\ntenant:x:1000:\nother:x:1001:\n")
        known = index(kernel)
        config = config | {"MODULES": " ".join(name for name in load if name.replace("-", "_") in known)}
        archive.write("etc/fermata", "".join(f"{k}='{v}'\n" for k, v in config.items()).encode())
        archive.write("command", command.encode())
        add_modules(archive, kernel, [*ON_DEMAND, *(name.replace("-", "_") for name in load)])
        for source, name in payload:
            archive.add(Path(source), name.lstrip("/"))
        archive.close()
