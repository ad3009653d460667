# SPDX-License-Identifier: GPL-2.0
"""A Debian system in the machine: the build root itself, by 9p. vm/debian is the other end."""

from .common import TOP

MODULES = ["9pnet_virtio", "9p", "overlay"]


def payload():
    return [(TOP / "vm/debian", "bin/debian")]


def qemu():
    """The root as it is seen from here. The checkout and the cache are file systems of their own, hence `remap`."""
    share = "local,id=debian,path=/,security_model=none,readonly=on,multidevs=remap"
    return ["-fsdev", share, "-device", "virtio-9p-pci,fsdev=debian,mount_tag=debian"]
