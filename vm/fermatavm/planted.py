# SPDX-License-Identifier: GPL-2.0
"""Check that the debug kernel reports each planted mistake (selftests/planted), and that the report would fail a run of vm/boot.

Prints a TAP point for each mistake.
"""

import os
import re

from . import boot, module
from .common import BUILD, TOP, Points
from .kernel import DEBUG, kernel_named
from .trouble import TROUBLE

# Mistakes, and what the kernel reports.
MISTAKES = {
    "use_after_free": "BUG: KASAN: slab-use-after-free in use_after_free",
    "double_free": "BUG: KASAN: double-free",
    "slab_out_of_bounds": "BUG: KASAN: slab-out-of-bounds in slab_out_of_bounds",
    "vmalloc_out_of_bounds": "BUG: KASAN: vmalloc-out-of-bounds in vmalloc_out_of_bounds",
    "planted_rust_use_after_free": "BUG: KASAN: slab-use-after-free in planted_rust_use_after_free",
    "planted_rust_out_of_bounds": "BUG: KASAN: slab-out-of-bounds in planted_rust_out_of_bounds",
    "write_to_freed_page": "pagealloc: memory corruption",
    "sleep_in_atomic": "BUG: sleeping function called from invalid context",
    "schedule_in_atomic": "BUG: scheduling while atomic: insmod",
    "free_active_timer": "ODEBUG: free active .* object type: timer_list",
    "free_active_work": "ODEBUG: free active .* object type: (work_struct|timer_list)",
    "shift_out_of_bounds": "UBSAN: shift-out-of-bounds in .*mistakes.c",
    "index_out_of_bounds": "UBSAN: array-index-out-of-bounds in .*mistakes.c",
    "list_corruption": "list_del corruption",
    "hung_task": "INFO: task planted:.* blocked for more than",
    "soft_lockup": r"BUG: soft lockup .* \[insmod:",
    "leftover_mapping": "DMA-API: .*device driver has pending DMA allocations while released from device",
    "unmap_twice": "DMA-API: .*device driver tries to free DMA memory it has not allocated",
    "rcu_without_lock": "WARNING: suspicious RCU usage",
    "lock_freed": "WARNING: held lock freed!",
    "wait_context": "BUG: Invalid wait context",
    "lock_of_interrupts": "WARNING: inconsistent lock state",
    "lock_recursion": "WARNING: possible recursive locking detected",
    "lock_inversion": "WARNING: possible circular locking dependency detected",
    "reference_of_free_page": "VM_BUG_ON_(PAGE|FOLIO)",
    "planted_rust_overflow": r"panicked at .*mistakes_rust.rs.*\n.*attempt to add with overflow",
    "planted_rust_assertion": r"panicked at .*mistakes_rust.rs.*\n.*assertion failed: black_box",
}
# A line in the kernel's log before each mistake.
MARK = "planted mistake: "
# Makes all mistakes, one after the other.
SCRIPT = f"""
cd /planted
echo 0 >/proc/sys/kernel/panic_on_oops
echo 2 >/proc/sys/kernel/hung_task_timeout_secs
echo 1 >/proc/sys/kernel/watchdog_thresh
echo 1 >/sys/kernel/debug/dma-api/all_errors
rmmod fermata
for mistake in {" ".join(MISTAKES)}; do
	echo "{MARK}$mistake" >/dev/kmsg
	insmod planted.ko bug=$mistake
	rmmod planted
done
echo "{MARK}none" >/dev/kmsg
"""
# kmemleak reports a leak only when selftests/leftovers scans.
LEFTOVERS = """
insmod /planted/planted.ko bug=leak
rmmod planted
/selftests/leftovers >/report/leftovers
true
"""


def main():
    # Reports of planted mistakes must not count as results of the module.
    os.environ.pop("FERMATA_RESULTS", None)
    kernel = kernel_named(DEBUG).ensure()
    folder = module.build_in(BUILD / f"planted-{kernel.name}", kernel, TOP / "selftests/planted", strict=True)
    log = run(folder, "planted", SCRIPT)
    points = Points(len(MISTAKES) + 1)
    for name in MISTAKES:
        points.point(is_reported(log, name), name)
    run(folder, "planted-leftovers", LEFTOVERS)
    out = (BUILD / "vm/planted-leftovers/files/leftovers").read_text()
    points.point("unreferenced object" in out and "not ok 2 nothing leaked" in out, "leak")
    points.end()


def run(folder, name, script):
    """Boot with the planted module in the machine; returns the kernel's log."""
    options = ["--kernel", DEBUG, "--guest", "selftests", "--card", "profile=irq", "--name", name, "--timeout", "900", "--allow", "."]
    options += ["--append", "kasan_multi_shot"]
    boot.run(boot.parse([*options, "--add", f"{folder}:planted", "--", "sh", "-c", script]))
    return (BUILD / f"vm/{name}/console").read_text(errors="replace")


def is_reported(log, mistake):
    """Return whether the kernel reported the mistake, so that a run would fail."""
    _, _, rest = log.partition(f"{MARK}{mistake}\n")
    words = rest.split(MARK)[0]
    return bool(re.search(MISTAKES[mistake], words)) and any(map(TROUBLE.search, words.splitlines()))


if __name__ == "__main__":
    main()
