# SPDX-License-Identifier: GPL-2.0
"""Check that a fault was injected at every place of the module where an allocation or a copy can fail (selftests/failnth).

The kernel's log has each fault with its stack; the module's code has the places. A function of the module, or an instance of a generic
function of the kernel's crate, can fail if it calls a function that can fail.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from . import machinecode, module
from .common import say
from .kernel import DEBUG, kernel_named

# Functions of the kernel that the module calls, as regular expressions: those in which a fault can be injected, ...
CAN_FAIL = re.compile(
    r"rust_helper_kv?realloc_node_align|_copy_(from|to)_user|.*UserSliceReader.*|.*UserSliceWriter.*"
    r"|(__)?alloc_pages(_exact)?_noprof|alloc_contig_pages_noprof|dma_alloc_attrs|dma_map_sgtable|sg_alloc_table_from_pages_segment"
    r"|pin_user_pages_(fast|remote)|vfs_kern_mount|vm_insert_page|cdev_alloc|cdev_add|device_create_with_groups|class_create"
    r"|alloc_chrdev_region|__pci_register_driver"
    r"|pci_iomap|pci_request_region|.*>::alloc_irq_vectors|rust_helper_devm_add_action_or_reset|request_threaded_irq"
)
# ... and those in which no fault can be injected, or in which a fault makes no difference to the caller. A function in neither list
# is an error.
CANNOT_FAIL = re.compile(
    r"__(asan|ubsan|kasan|sanitizer|rcu|clear_pages|folio_put|init|vma_start_write|wake_up)\w*|_dev_printk|_raw_spin\w*|capable|complete_all"
    r"|\w*lockdep\w*|lock_\w+|rcu_\w+|debug_\w+|dump_page|\w*_(destroy|del|put|free|release_region|unregister\w*|iounmap)|free_\w+|put_\w+"
    r"|dma_map_page_attrs|dma_unmap_page_attrs|eventfd_ctx_fdget|finish_wait|get_task_pid|hrtimer_\w+|init_wait_entry|iommu_get_domain_for_dev|irq_work_\w+"
    r"|ktime_get|mutex_unlock|pci_(clear_master|disable_device|restore_state|irq_vector|set_master|unregister_driver)|pid_vnr"
    r"|prepare_to_wait_event|refcount_\w+|rust_helper_(?!kv?realloc).*|schedule\w*|sg_free_table|strlen|synchronize_rcu|unmap_mapping_range"
    r"|unpin_user_pages_dirty_lock|unregister_chrdev_region|wait_for_completion|mem(cpy|set|move|cmp)|bcmp|(en|dis)able_irq\w*"
    r"|do_timens_ktime_to_host|security_locked_down|eventfd_signal_mask|vmalloc_to_page|seq_printf|sysfs_emit"
    r"|__srcu_check_read_flavor|(__)?trace_(event_buffer_\w+|event_printf|print_\w+_seq|raw_output_prep|trigger_soft_disabled)"
    r"|perf_trace_(buf_alloc|run_bpf_submit)|preempt_schedule_notrace_thunk"
    r"|__might_resched|__mmap_lock_do_trace_\w+|__msecs_to_jiffies|fs_reclaim_\w+|mutex_lock_nested|down_read|split_page"
    r"|queue_work_on|flush_(delayed_)?work|cancel_delayed_work_sync|f(get|put)|dput|mmput|kern_unmount|get_fs_type|vfs_getattr_nosec"
    r"|cgroup_get_from_id|find_get_pid|get_pid_task|get_task_mm"
)
# Rust frees memory by krealloc() to size 0.
FREES = re.compile(r"::free\b|drop_in_place|as core::ops::drop::Drop>::drop")
# Places for which the log shows no fault, as callee and function.
NEVER = [
    # The memory was already reserved, by with_capacity().
    (r"Vec<.*>>::reserve", r"Vec<(?!.*Arc<).*>>::(push|extend_with)"),
    (r"Vec<.*AppRegister.*>>::reserve", r"ioctl::Call>::\w+"),
    (r"Vec<u64, .*>>::reserve", r"cgroup::Reference>::lineage"),
    (r"Vec<.*image::ContextRef.*>>::push", r"card::Card>::new"),
    (r"Vec<.*>>::extend_with", r"Vec<.*>>::from_elem"),
    # __GFP_NOWARN: the fault is not logged; or the size exceeds the page allocator's maximum, and no allocation is tried.
    (r"alloc_pages_exact_noprof|alloc_contig_pages_noprof|__alloc_pages_noprof", r"fermata_(contig|pages)_alloc"),
    (r"fermata_(contig|pages)_alloc", r".*"),
    # An allocation larger than a page is first tried without a warning.
    (r"Vec<.*(sched::(entity|table)::\w+|image::ContextRef|client::Client).*, .*KVmalloc>>::(with_capacity|reserve)", r".*"),
    (r"rust_helper_kvrealloc_node_align", r"Vec<.*(sched::(entity|table)::\w+|image::ContextRef).*>>::reserve"),
    # Copies of functions that are inlined at all calls.
    (r"__pci_register_driver", r"Adapter.* as kernel::driver::RegistrationOps>::register"),
    (r"_copy_(from|to)_user", r"UserSlice(Reader|Writer)>::(read|write)::<(fermata_main::uapi::Reg|u64)>"),
    (r"rust_helper_kvrealloc_node_align", r"KVmalloc as .*Allocator>::alloc"),
    (r"pci::io::Bar<\d+>>::new", r"iomap_region_sized::<\d+>"),
    # The IOMMU takes addresses and page tables for a page from its caches.
    (r"dma_map_sgtable|UnmappedMemory>::map_for|Option<.*relay::UnmappedImage>>::map::<.*>", r".*"),
    # Called by a kworker, in which no fault is injected.
    (r"vfs_kern_mount", r"fermata_mount_make"),
]
FRAME = re.compile(r"^ (?:<TASK> )?([\w.$]+)\+0x([0-9a-f]+)/0x[0-9a-f]+ \[fermata\]")
FAULT = "FAULT_INJECTION: forcing a failure"


def faulted_places(log):
    """Return {(function, offset)} of the module's places that were on the stack of a fault."""
    places, inside = set(), False
    for line in log.splitlines():
        if FAULT in line:
            inside = True
        elif "</TASK>" in line:
            inside = False
        elif inside and (frame := FRAME.match(line)):
            places.add((frame.group(1), int(frame.group(2), 16)))
    return places


def undefined(ko):
    out = subprocess.run(["nm", "-u", ko], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in out.splitlines()}


def silent(callee, function):
    return any(re.search(f"{what}$", callee) and re.search(f"{where}$", function) for what, where in NEVER)


def failing(sites, names, imported):
    """Return the functions that can fail: functions of the kernel, and functions of the module that call them."""
    can = {callee for _, _, callee in sites if callee in imported and CAN_FAIL.fullmatch(names[callee])}
    while True:
        more = {function for function, _, callee in sites if callee in can and not FREES.search(names[function])} - can
        if not more:
            return can
        can |= more


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", nargs="+", type=Path, help="a kernel's log (build/vm/NAME/console)")
    parser.add_argument("--list", action="store_true", help="also list the places with a fault")
    args = parser.parse_args()
    ko = module.build(kernel_named(DEBUG).ensure())
    imported, sites = undefined(ko), machinecode.call_sites(ko)
    names = machinecode.readable(name for site in sites for name in (site[0], site[2]))
    unknown = {
        callee for _, _, callee in sites
        if callee in imported and not callee.startswith("_R") and not CAN_FAIL.fullmatch(callee) and not CANNOT_FAIL.fullmatch(callee)
    }  # fmt: skip
    for name in sorted(unknown):
        say(f"{name}: neither CAN_FAIL nor CANNOT_FAIL in vm/fermatavm/faults.py matches this function: add it to one of them")
    places = set().union(*(faulted_places(log.read_text(errors="replace")) for log in args.log))
    can = failing(sites, names, imported)
    wanted = [site for site in sites if site[2] in can and not FREES.search(f"{names[site[2]]} {names[site[0]]}")]
    missed = [site for site in wanted if site[:2] not in places and not silent(names[site[2]], names[site[0]])]
    for function, offset, callee in wanted if args.list else missed:
        word = "not hit" if (function, offset, callee) in missed else "hit"
        print(f"{word}: {names[callee]}\n    in {names[function]}+{offset:#x}")
    hits = sum(site[:2] in places for site in wanted)
    print(f"{len(wanted)} places where a call can fail: {hits} hit, {len(wanted) - hits - len(missed)} silent, {len(missed)} missed")
    sys.exit(bool(unknown or missed or not wanted))


if __name__ == "__main__":
    main()
