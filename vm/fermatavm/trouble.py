# SPDX-License-Identifier: GPL-2.0
"""Lines of the kernel's log that tell of a mistake."""

import re

TROUBLE = re.compile(
    r"Oops|BUG[: ]|WARNING:|Call Trace|Kernel panic|panicked at|general protection|UBSAN|KASAN|blocked for more than|rcu.*stall"
    r"|soft lockup|hard LOCKUP|nobody cared|DMAR: .*(fault|\[DMA)|virtio_iommu.*fault|refcount_t:|scheduling while atomic"
    r"|possible recursive|inconsistent lock state|possible circular|suspicious RCU|non-static key|turning off the locking"
    r"|DMA-API: (?!preallocated|debugging)|ODEBUG|pagealloc: (memory|single)|(list_add|list_del) corruption"
    r"|kmemleak: (Cannot|Memory pool empty)|\[fermata\] enqueued on deprecated"
)
