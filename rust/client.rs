// SPDX-License-Identifier: GPL-2.0

//! The part of a context that its card knows: who opened the context, and its memory.

use crate::{
    bar::Window,
    charge::{Pinned, PinnedBytes},
    compat::errno,
    delivery::Delivery,
    dma_memory::DmaMemory,
    image::ContextRef,
    notifier::{Notice, Notifier},
    opener::Opener,
    pages::PageRange,
    relay::ImageMemory,
    scheduler::{ContextId, GroupKey},
    trace,
};
use core::ptr;
use kernel::{
    bindings,
    cred::Credential,
    fs::File,
    mm::virt::VmaRef,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, AtomicFlag, Relaxed, Release},
        new_mutex, Arc, Mutex, SetOnce,
    },
};

/// Maximum number of pages that one fault inserts.
const FAULT_AROUND: usize = 64;

/// The context that is charged for the memory of a shared arena.
#[derive(Clone)]
pub(crate) struct Lender {
    /// Keeps the context open, with its charge and its job.
    _file: ARef<File>,
    /// The context's number for programs.
    pub(crate) number: u32,
}

impl Lender {
    /// Returns the context that has this file and this number.
    pub(crate) fn new(file: ARef<File>, number: u32) -> Self {
        Self {
            _file: file,
            number,
        }
    }
}

/// The memory that the engine may access.
pub(crate) struct Arena {
    pub(crate) memory: DmaMemory,
    /// Device address of the first byte; `None`: the address of the first mapping of the whole
    /// arena.
    pub(crate) device_base: Option<u64>,
    /// The program's own memory: its address when the arena was made.
    pub(crate) own: Option<u64>,
    /// `None`: this context is charged for the memory. Dropped after `memory`.
    pub(crate) lender: Option<Lender>,
    /// Counts the memory for this context once the lender may be gone.
    pub(crate) counted: Option<PinnedBytes>,
}

impl Arena {
    /// Returns the window of a slot for this arena; `None`: the device address is not known yet.
    pub(crate) fn window(&self) -> Option<Window> {
        Some(Window {
            device_base: self.device_base?,
            iova: self.memory.iova(),
            // CAST: usize is 64 bits wide where PCI cards with 64-bit BARs are.
            length: self.memory.length() as u64,
        })
    }
}

/// The memory of a context that the card can reach.
pub(crate) struct Memory {
    pub(crate) arena: Option<Arena>,
    pub(crate) snapshot: Option<DmaMemory>,
    /// The snapshot buffer is the program's own memory: its address when the buffer was made.
    pub(crate) own_snapshot: Option<u64>,
    /// The memory in which a card with a relay reads registers of the context and writes results.
    pub(crate) image: Option<ImageMemory>,
    /// The program has put a state into the snapshot buffer since the last START.
    pub(crate) imported: bool,
    /// The page cache of the device node, through which mappings are found. Null if there can be no
    /// mapping.
    pub(crate) mapping: *mut bindings::address_space,
    /// No page may be inserted into mappings any more.
    revoked: bool,
}

// SAFETY: `mapping` may be used on any thread: only a C function that locks it gets the pointer.
// All other fields are `Send`.
unsafe impl Send for Memory {}

impl Memory {
    /// Returns whether a job can start from the contents of the snapshot buffer. The driver does
    /// not know the contents of a program's own memory, and assumes a state.
    pub(crate) fn holds_state(&self) -> bool {
        let snapshot = self.snapshot.as_ref();
        self.imported || snapshot.is_some_and(|snapshot| !snapshot.is_allocated())
    }

    /// Checks that the memory was not revoked. `ENODEV`: it was, because the card is gone.
    pub(crate) fn check_present(&self) -> Result {
        match self.revoked {
            true => Err(ENODEV),
            false => Ok(()),
        }
    }

    /// Returns the snapshot buffer. `ENODEV`; `ENXIO`: there is no snapshot buffer.
    pub(crate) fn snapshot(&self) -> Result<&DmaMemory> {
        self.check_present()?;
        self.snapshot.as_ref().ok_or_else(errno::enxio)
    }

    /// Takes the lender out of the arena. The pages stay pinned, and charged to the lender's user.
    /// The limits of groups and users count only contexts that exist, so from now on the pages are
    /// counted for the context of `pinned`. `uncharged`: no memory cgroup is charged for the pages.
    pub(crate) fn take_lender(&mut self, pinned: &Arc<Pinned>, uncharged: bool) -> Option<Lender> {
        let arena = self.arena.as_mut()?;
        let lender = arena.lender.take()?;
        let length = (arena.memory.pages().kept() * PAGE_SIZE) as u64;
        arena.counted = Some(PinnedBytes::new(pinned, length, uncharged));
        Some(lender)
    }

    /// Takes out all memory that the card can reach.
    fn take(&mut self) -> (Option<Arena>, Option<DmaMemory>, Option<ImageMemory>) {
        (self.arena.take(), self.snapshot.take(), self.image.take())
    }
}

/// The result of the set-up of a context.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) id: ContextId,
    /// All slots that have the context's engine, a bit each.
    pub(crate) engine: u8,
}

/// Sizes and the device address of a context's memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct MemoryInfo {
    pub(crate) arena_length: u64,
    pub(crate) device_base: u64,
    pub(crate) snapshot_length: u64,
    /// Number of the context that is charged for the arena, if it is another context.
    pub(crate) lender: Option<u32>,
}

/// What a card's registry knows about a context: who opened it, and its memory. Outlives the open
/// file if a quarantined slot may still reach the memory.
#[pin_data]
pub(crate) struct Client {
    pub(crate) opener: Opener,
    /// `None` once set-up has moved the part to the card's state. The lock serialises set-up: only
    /// `setup` and the registry are accessed under it.
    #[pin]
    pub(crate) part: Mutex<Option<ContextRef>>,
    pub(crate) setup: SetOnce<Setup>,
    /// [`revoke`] has finished.
    pub(crate) revoked: AtomicFlag,
    /// `Context::release` has finished without freeing the memory. Protected by the registry's
    /// lock.
    left_behind: AtomicFlag,
    /// Bytes of memory for the card. Raised under the registry's lock, except for memory that is
    /// counted already.
    pub(crate) pinned: Arc<Pinned>,
    /// The number of the context's group, from set-up on. Changed under the registry's lock only.
    group: Atomic<u64>,
    /// Nests inside `mmap_lock` (`mmap()` takes it) and the unplug gate, so no user memory is
    /// accessed and no memory is allocated under it. Nests outside the card's raw lock.
    #[pin]
    pub(crate) memory: Mutex<Memory>,
    pub(crate) notifier: Arc<Notifier>,
    /// Held by a call that accesses the registers of the context's slot. So at most one such call
    /// for each context on a slot waits for the card's raw lock with interrupts off, and a call
    /// waits only for calls of its own program. No lock but the raw lock is taken under it.
    #[pin]
    pub(crate) register_calls: Mutex<()>,
}

impl Client {
    /// Returns the client of the caller, who opens a file with the credentials `credential`.
    pub(crate) fn new(credential: &Credential) -> Result<Arc<Self>> {
        let opener = Opener::current(credential)?;
        let pinned = Pinned::new()?;
        let notifier = Arc::pin_init(Notifier::new(), GFP_KERNEL_ACCOUNT)?;
        let part = ContextRef::new(notifier.clone(), opener.first_pid)?;
        Arc::pin_init(
            try_pin_init!(Self {
                opener,
                part <- new_mutex!(Some(part), "fermata_context"),
                register_calls <- new_mutex!((), "fermata_register_calls"),
                setup: SetOnce::new(),
                revoked: AtomicFlag::new(false),
                left_behind: AtomicFlag::new(false),
                pinned,
                group: Atomic::new(0),
                memory <- new_mutex!(
                    Memory {
                        arena: None,
                        snapshot: None,
                        own_snapshot: None,
                        image: None,
                        imported: false,
                        mapping: ptr::null_mut(),
                        revoked: false,
                    },
                    "fermata_memory"
                ),
                notifier,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the context's number in the scheduler. `ENXIO`: the context is not set up.
    pub(crate) fn id(&self) -> Result<ContextId> {
        Ok(self.setup.as_ref().ok_or_else(errno::enxio)?.id)
    }

    /// Returns the context's number for programs. No other context has this number while the
    /// context lives, and a context that reuses an index gets another number. `ENXIO`: the context
    /// is not set up.
    pub(crate) fn number(&self) -> Result<u32> {
        Ok(trace::number(self.id()?))
    }

    /// Returns all slots that have the context's engine, a bit each; none before set-up.
    pub(crate) fn engine_slots(&self) -> u8 {
        self.setup.as_ref().map_or(0, |setup| setup.engine)
    }

    /// Returns the group of a context that is set up.
    pub(crate) fn group(&self) -> GroupKey {
        GroupKey(self.group.load(Relaxed))
    }

    /// Sets the context's group. Returns whether the group has changed. Under the registry's lock.
    pub(crate) fn put_group(&self, group: GroupKey) -> bool {
        self.group.xchg(group.0, Relaxed) != group.0
    }

    /// Returns whether the context is set up.
    pub(crate) fn is_set_up(&self) -> bool {
        self.setup.as_ref().is_some()
    }

    /// Returns the sizes and the device address of the context's memory.
    pub(crate) fn memory_info(&self) -> MemoryInfo {
        let memory = self.memory.lock();
        let arena = memory.arena.as_ref();
        MemoryInfo {
            arena_length: arena.map_or(0, |arena| arena.memory.length() as u64),
            device_base: arena.and_then(|arena| arena.device_base).unwrap_or(0),
            snapshot_length: memory
                .snapshot
                .as_ref()
                .map_or(0, |snapshot| snapshot.length() as u64),
            lender: arena.and_then(|arena| Some(arena.lender.as_ref()?.number)),
        }
    }

    /// Inserts the page that backs `address`, page number `page` of the arena, and some of the
    /// pages behind it into `vma`. Returns `false` if the memory has been revoked. Called by the
    /// `fault` operation of a mapping that `Context::map` prepared.
    ///
    /// Removal waits for the memory's lock, so page tables are not allocated under it. If
    /// [`revoke`] comes in between and misses the inserted pages, they are removed here.
    pub(crate) fn fault(&self, vma: &VmaRef, address: usize, page: usize) -> Result<bool> {
        let Some(pages) = self.arena_pages() else {
            return Ok(false);
        };
        let vma = vma.as_mixedmap_vma().ok_or(EINVAL)?;
        let left = pages.len().checked_sub(page).ok_or(EINVAL)?;
        let most = FAULT_AROUND.min((vma.end() - address) / PAGE_SIZE);
        for n in 0..most.min(left) {
            let page = pages.get(page + n).ok_or(EINVAL)?;
            match vma.vm_insert_page(address + n * PAGE_SIZE, &page) {
                // Another thread's fault has inserted the page.
                Err(error) if error == EBUSY => {}
                // The page that is needed is there.
                Err(_) if n > 0 => break,
                inserted => inserted?,
            }
        }
        let (revoked, mapping) = {
            let memory = self.memory.lock();
            (memory.revoked, memory.mapping)
        };
        if revoked && !mapping.is_null() {
            // SAFETY: The page cache is that of the file of `vma`, which lives as long as `vma`.
            unsafe { bindings::unmap_mapping_range(mapping, 0, 0, 1) };
        }
        Ok(!revoked)
    }

    /// Returns the pages of the arena. `None`: there is no arena, or it has been revoked.
    fn arena_pages(&self) -> Option<PageRange> {
        let memory = self.memory.lock();
        memory.check_present().ok()?;
        Some(memory.arena.as_ref()?.memory.pages().clone())
    }
}

/// The memory of a context whose owner is gone.
impl Client {
    /// Leaves the memory to the registry, unless the context has been released by now. Returns
    /// whether the memory was left. Under the registry's lock.
    pub(crate) fn leave_behind(&self) -> bool {
        let leaves = !self.notifier.has(Notice::Released);
        self.left_behind.store(leaves, Relaxed);
        leaves
    }

    /// Returns whether the memory was left behind and no slot can reach it any more. Under the
    /// registry's lock.
    pub(crate) fn may_be_freed(&self) -> bool {
        self.left_behind.load(Relaxed) && self.notifier.has(Notice::Released)
    }

    /// Frees the arena and the snapshot buffer. The device must be bound, and no DMA to them may
    /// follow.
    pub(crate) fn free_memory(&self) {
        let freed = self.memory.lock().take();
        drop(freed);
    }
}

/// Takes the memory of `clients` away from their programs and from the card. Accesses to mappings
/// give SIGBUS from now on. The device must be bound, and no DMA may follow.
pub(crate) fn revoke(clients: &[Arc<Client>], delivery: &Delivery) {
    for client in clients {
        client.memory.lock().revoked = true;
    }
    let mut last = ptr::null_mut();
    for client in clients {
        let memory = client.memory.lock();
        // The mappings of all contexts of a node are found through one page cache.
        if !memory.mapping.is_null() && memory.mapping != last {
            last = memory.mapping;
            // SAFETY: The page cache lives as long as the context's file. Before that is freed,
            // `Context::release` clears `mapping`, for which it needs the lock that is held.
            unsafe { bindings::unmap_mapping_range(last, 0, 0, 1) };
        }
    }
    for client in clients {
        client.free_memory();
        client.revoked.store(true, Release);
        delivery.tell(&client.notifier, Notice::Gone);
    }
}
