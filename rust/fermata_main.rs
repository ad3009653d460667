// SPDX-License-Identifier: GPL-2.0

//! fermata: shares a preemptible PCIe accelerator between processes, in time and in space.
//!
//! Dependencies point one way: file operations ([`mod@file`]) → calls ([`ioctl`]) → context
//! ([`context`]) → card ([`card`]: the scheduler and slot protocol of [`scheduler`], and the images of
//! contexts) → registers ([`bar`]). Interrupts and timers enter at the card. See
//! docs/architecture.md.

mod adapter;
mod argument;
mod array;
mod bar;
mod bus_watch;
mod c_object;
mod capability;
mod card;
mod cgroup;
mod chardev;
mod charge;
mod client;
mod compat;
mod context;
mod delayed_work;
mod delivery;
mod dma_memory;
mod driver;
mod dump;
mod engine_id;
mod fdinfo;
mod file;
mod gate;
mod hold;
mod image;
mod ioctl;
mod limits;
#[expect(
    unreachable_pub,
    dead_code,
    unused_imports,
    reason = "rust/host compiles these files, too, and uses all of their interface"
)]
mod measure;
mod measurement;
mod monotonic;
mod notifier;
mod opener;
mod pages;
mod presence;
mod raw_spinlock;
mod regs;
mod relay;
#[expect(
    unreachable_pub,
    dead_code,
    reason = "rust/host compiles these files, too, and uses all of their interface"
)]
mod scheduler;
mod shim;
mod sysfs;
mod timer;
mod trace;
mod uapi;
mod user_memory;
mod vector;
mod wait_queue;
mod write_log;

use chardev::Class;
use kernel::prelude::*;

module! {
    type: Fermata,
    name: "fermata",
    authors: ["The fermata developers"],
    description: "Shares a preemptible accelerator card between processes",
    license: "GPL",
    params: {
        max_contexts: u32 {
            default: 4096,
            description: "Contexts that can be set up on a card at once, 1 to 65536",
        },
        max_contexts_group: u32 {
            default: 0,
            description: "Contexts of one group that can be set up on a card, 1 to 65536; 0: a quarter",
        },
        max_pinned_group_mib: u32 {
            default: 0,
            description: "Pinned memory of the contexts of one group on a card in MiB; 0: a quarter",
        },
        max_arena_mib: u32 {
            default: 1024,
            description: "Largest arena in MiB",
        },
        max_contiguous_mib: u32 {
            default: 256,
            description: "Memory in pieces above 4 MiB of a user or group, without IOMMU, in MiB",
        },
        timeslice_us: u32 {
            default: 2000,
            description: "Timeslice of a new context in us, 100 to 10000000",
        },
        preempt_timeout_us: u32 {
            default: 100000,
            description: "Preempt timeout of a new context in us, 1000 to 10000000",
        },
        boost_ms: u32 {
            default: 1000,
            description: "Starvation boost interval of a card in ms, 10 to 60000, 0: none",
        },
        boundary_wait_us: u32 {
            default: 1000,
            description: "Wait of urgent work for a cooperative job's boundary, us, to 10000000",
        },
        completion_rate: u32 {
            default: 1000,
            description: "Completion interrupts of a vector in a second, 100 to 1000000",
        },
        relay: u32 {
            default: 1,
            description: "Let cards that can do so switch by themselves: 1, or 0",
        },
        foreign_memory: u32 {
            default: 0,
            description: "Let contexts use memory of another process, for restoring programs: 1, or 0",
        },
        base_settle_us: u32 {
            default: 1000,
            description: "How long DMA may arrive after a reset (base cards), us, up to 1000000",
        },
        base_unsavable_us: u32 {
            default: 0,
            description: "No PAUSE sooner than this after a START (base cards), us, up to 10000",
        },
        base_read_any: u32 {
            default: 0,
            description: "Let programs read each register of their slot of a base card: 1, or 0",
        },
    },
}

/// The module. The fields are dropped in their order: first the driver, and with it all cards.
#[pin_data]
struct Fermata {
    #[pin]
    _driver: kernel::driver::Registration<adapter::Adapter>,
    _class: Class,
}

impl kernel::InPlaceModule for Fermata {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _class: Class::new()?,
            _driver <- kernel::driver::Registration::new(
                <Self as kernel::ModuleMetadata>::NAME,
                module,
            ),
        })
    }
}
