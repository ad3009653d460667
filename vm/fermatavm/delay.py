# SPDX-License-Identifier: GPL-2.0
"""Build the module that widens windows of races (selftests/delay) for a kernel, and print its path."""

import sys

from . import module
from .common import BUILD, TOP
from .kernel import kernel_named


def build(kernel):
    folder = module.build_in(BUILD / f"delay-{kernel.name}", kernel, TOP / "selftests/delay")
    return folder / "delay.ko"


if __name__ == "__main__":
    print(build(kernel_named(sys.argv[1]).ensure()))
