# SPDX-License-Identifier: GPL-2.0
"""Kernels, module builds, initramfs and boots of fermata's virtual machine. Runs inside the build root."""
