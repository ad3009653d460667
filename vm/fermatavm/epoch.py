# SPDX-License-Identifier: GPL-2.0
"""make epoch: the first figure of EPOCH and its basic benchmark, with a picture. Usage: python3 -m fermatavm.epoch [OPTION of vm/boot]..."""

import sys

from .demo import epoch

if __name__ == "__main__":
    sys.exit(epoch(sys.argv[1:]))
