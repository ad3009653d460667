# SPDX-License-Identifier: GPL-2.0
"""Measure the speed of the processor's time stamp counter.

A guest without KVM reads the host's counter, and measures its speed at boot against timers that QEMU emulates. On a busy host the
result has been up to 48 times too slow, and the guest's clock so much too fast that every time limit was over at once.
"""

import ctypes
import mmap
import time

# rdtsc; shl rdx, 32; or rax, rdx; ret
READ_COUNTER = bytes.fromhex("0f31 48c1e220 4809d0 c3")
SPAN_NS = 50_000_000
TRIES = 5


def _pair(read):
    """Return the counter and the clock (ns), read next to each other: the closest of some pairs."""
    pairs = []
    for _ in range(20):
        before = time.monotonic_ns()
        count = read()
        after = time.monotonic_ns()
        pairs.append((after - before, count, (before + after) // 2))
    return min(pairs)[1:]


def khz():
    """Return the speed in kHz: the median of some measurements."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(READ_COUNTER)
        place = ctypes.c_char.from_buffer(page)
        read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(place))
        speeds = []
        for _ in range(TRIES):
            count, at = _pair(read)
            time.sleep(SPAN_NS / 1e9)
            later_count, later = _pair(read)
            speeds.append((later_count - count) * 1_000_000 // (later - at))
        del read, place
    return sorted(speeds)[TRIES // 2]
