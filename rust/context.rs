// SPDX-License-Identifier: GPL-2.0

//! A context: one open file description, one tenant's use of a card.

mod snapshot;

use crate::{
    bar::Window,
    capability,
    card::{Card, Registry, View},
    charge::{Charge, Pinned},
    compat::errno,
    dma_memory::{DmaMemory, Kind, UnmappedMemory},
    image::{AppRegister, Tenant},
    notifier::{Notice, Notifier},
    opener::Opener,
    pages::Pages,
    sched::{ContextConfig, ContextId, Failure, GroupKey, JobState, Params},
    trace,
};
use core::ptr;
use kernel::{
    bindings,
    cred::Credential,
    mm::virt::{flags, VmaNew, VmaRef},
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, AtomicFlag, Relaxed, Release},
        new_mutex, Arc, ArcBorrow, Mutex, SetOnce,
    },
};

/// Device addresses end here: what a program's own addresses can be.
const DEVICE_ADDRESS_END: u64 = 1 << 47;
/// Pages that one fault inserts at most.
const FAULT_AROUND: usize = 64;

/// The memory that the engine may access.
struct Arena {
    memory: DmaMemory,
    /// Device address of the first byte; `None`: the address of the first mapping of the whole
    /// arena.
    device_base: Option<u64>,
}

impl Arena {
    /// Returns the window of a slot for this arena; `None`: the device address is not known yet.
    fn window(&self) -> Option<Window> {
        Some(Window {
            device_base: self.device_base?,
            iova: self.memory.iova(),
            // CAST: usize is 64 bits wide where PCI cards with 64-bit BARs are.
            length: self.memory.length() as u64,
        })
    }
}

/// The memory of a context that the card can reach.
struct Memory {
    arena: Option<Arena>,
    snapshot: Option<DmaMemory>,
    /// The program has put a state into the snapshot buffer since the last START.
    imported: bool,
    /// The page cache of the device node, through which mappings are found. Null if there can be no
    /// mapping.
    mapping: *mut bindings::address_space,
    /// No page may be inserted into mappings any more.
    revoked: bool,
}

// SAFETY: `mapping` may be used on any thread: only a C function that locks it gets the pointer.
// All other fields are `Send`.
unsafe impl Send for Memory {}

impl Memory {
    /// Returns whether a job can start from the contents of the snapshot buffer. The driver does
    /// not know the contents of a program's own memory, and assumes a state.
    fn holds_state(&self) -> bool {
        let snapshot = self.snapshot.as_ref();
        self.imported || snapshot.is_some_and(|snapshot| !snapshot.is_allocated())
    }

    /// `ENODEV`: the memory was revoked, because the card is gone.
    fn check_present(&self) -> Result {
        match self.revoked {
            true => Err(ENODEV),
            false => Ok(()),
        }
    }

    /// Returns the snapshot buffer. `ENODEV`; `ENXIO`: there is no snapshot buffer.
    fn snapshot(&self) -> Result<&DmaMemory> {
        self.check_present()?;
        self.snapshot.as_ref().ok_or_else(errno::enxio)
    }

    /// Takes the arena and the snapshot buffer out.
    fn take(&mut self) -> (Option<Arena>, Option<DmaMemory>) {
        (self.arena.take(), self.snapshot.take())
    }
}

/// The result of the set-up of a context.
#[derive(Clone, Copy)]
struct Setup {
    id: ContextId,
    /// All slots that have the context's engine, a bit each.
    engine: u8,
}

/// Sizes and the device address of a context's memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct MemoryInfo {
    pub(crate) arena_length: u64,
    pub(crate) device_base: u64,
    pub(crate) snapshot_length: u64,
}

/// One tenant's use of a card.
#[pin_data]
pub(crate) struct Context {
    pub(crate) card: Arc<Card>,
    pub(crate) opener: Opener,
    /// Until set-up, which moves it to the card's state. The lock serialises set-up: only `setup` and
    /// the registry are accessed under it.
    #[pin]
    tenant: Mutex<Option<Tenant>>,
    setup: SetOnce<Setup>,
    /// [`revoke`] has finished.
    revoked: AtomicFlag,
    /// [`Context::release`] has finished without freeing the memory. Protected by the registry's
    /// lock.
    left_behind: AtomicFlag,
    /// Bytes of memory for the card. Raised under the registry's lock only.
    pub(crate) pinned: Arc<Pinned>,
    /// The number of the context's group, from set-up on. Changed under the registry's lock only.
    group: Atomic<u64>,
    /// Nests inside `mmap_lock` (`mmap()` takes it) and the unplug gate, so no user memory is
    /// accessed and no memory is allocated under it. Nests outside the card's raw lock.
    #[pin]
    memory: Mutex<Memory>,
    pub(crate) notifier: Arc<Notifier>,
}

impl Context {
    /// Returns a context of the caller, who opens `card` by a file with the credentials
    /// `credential`.
    pub(crate) fn new(card: Arc<Card>, credential: &Credential) -> Result<Arc<Self>> {
        let opener = Opener::current(credential)?;
        let pinned = Pinned::new()?;
        card.note_open(opener.pid);
        let notifier = Arc::pin_init(Notifier::new(), GFP_KERNEL_ACCOUNT)?;
        let tenant = Tenant::new(notifier.clone(), opener.pid)?;
        Arc::pin_init(
            try_pin_init!(Self {
                card,
                opener,
                tenant <- new_mutex!(Some(tenant), "fermata_tenant"),
                setup: SetOnce::new(),
                revoked: AtomicFlag::new(false),
                left_behind: AtomicFlag::new(false),
                pinned,
                group: Atomic::new(0),
                memory <- new_mutex!(
                    Memory {
                        arena: None,
                        snapshot: None,
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
    /// context lives, and an index that is used again comes with another number. `ENXIO`: the
    /// context is not set up.
    pub(crate) fn number(&self) -> Result<u32> {
        Ok(trace::number(self.id()?))
    }

    /// Returns all slots that have the context's engine, a bit each; none before set-up.
    pub(crate) fn engine_slots(&self) -> u8 {
        self.setup.as_ref().map_or(0, |setup| setup.engine)
    }

    /// Sets the slots that the context may use from now on. `EPROTO`: the state of one of them is
    /// larger than the snapshot buffer.
    pub(crate) fn set_slots(&self, slots: u8) -> Result {
        let id = self.id()?;
        let memory = self.memory.lock();
        if let Some(snapshot) = &memory.snapshot {
            self.check_snapshot(slots, snapshot.length() as u64)?;
        }
        self.card.set_params(id, |params| params.mask = slots)
    }

    /// Returns the context's group: before set-up, the group that the context would join now.
    pub(crate) fn group(&self) -> GroupKey {
        if self.is_set_up() {
            self.joined_group()
        } else {
            self.card.group_of(&self.opener)
        }
    }

    /// Returns the group of a context that is set up.
    pub(crate) fn joined_group(&self) -> GroupKey {
        GroupKey(self.group.load(Relaxed))
    }

    /// Sets the context's group. Returns whether that is another group than before. Under the
    /// registry's lock.
    pub(crate) fn put_group(&self, group: GroupKey) -> bool {
        self.group.xchg(group.0, Relaxed) != group.0
    }

    /// Returns whether the context is set up.
    pub(crate) fn is_set_up(&self) -> bool {
        self.setup.as_ref().is_some()
    }

    /// Sets the context up for the engine `afu_id` on the slots `mask` (0: all that have the
    /// engine).
    pub(crate) fn set_up(self: ArcBorrow<'_, Self>, afu_id: (u64, u64), mask: u32) -> Result {
        let mut tenant = self.tenant.lock();
        if self.is_set_up() {
            return Err(EEXIST);
        }
        let able = self.card.slots_with(afu_id);
        if able == 0 {
            return Err(ENOENT);
        }
        let slots = match mask {
            0 => able,
            mask if mask & !u32::from(able) == 0 => mask as u8,
            _ => return Err(EINVAL),
        };
        self.check_separation()?;
        self.card.register(self.into(), |registry| {
            self.join(registry, &mut tenant, slots, able)
        })
    }

    /// `EPERM`: the card could access all memory, which the caller may not allow. Without a window
    /// check only an IOMMU separates tenants from the host, and nothing separates tenants.
    fn check_separation(&self) -> Result {
        if self.card.identity.has_window() || self.card.translated {
            return Ok(());
        }
        if !capability::may_touch_all_memory() {
            return Err(EPERM);
        }
        Ok(())
    }

    /// Checks that the context may be set up in `group` beside the other contexts. `EBUSY`: nothing
    /// separates it from another user's; `EDQUOT`: its group has too many contexts.
    fn check_others(&self, registry: &Registry, group: GroupKey) -> Result {
        let mut others = registry.contexts().iter();
        let is_foreign = |other: &Arc<Self>| !self.opener.is_same_user(&other.opener);
        if !self.card.identity.has_window() && others.any(is_foreign) {
            return Err(EBUSY);
        }
        let most = match registry.limits_of(group).contexts {
            0 => self.card.limits.contexts_of_group,
            // CAST: at least 32 bits.
            contexts => contexts as usize,
        };
        if registry.members(group).count() >= most && !capability::has_cap_sys_resource() {
            return Err(errno::edquot());
        }
        Ok(())
    }

    /// Adds the context to the card's scheduler, for `slots` of the slots `able` that have its
    /// engine. The registry is locked: a caller that changes groups either finds the context set
    /// up, or is done.
    fn join(
        &self,
        registry: &Registry,
        tenant: &mut Option<Tenant>,
        slots: u8,
        able: u8,
    ) -> Result {
        let group = registry.group_of(&self.opener);
        self.check_others(registry, group)?;
        let config = ContextConfig {
            class: self.card.class_of(slots.trailing_zeros() as usize),
            params: Params {
                mask: slots,
                cooperative: self.card.is_boundary_only(slots),
                ..self.card.limits.params
            },
            group,
        };
        let id = self.card.add(config, tenant)?;
        self.put_group(group);
        // Nobody else can have set it: the lock of `tenant` is held.
        self.setup.populate(Setup { id, engine: able });
        Ok(())
    }

    /// Allocates an arena of `length` bytes, or makes one of the caller's own memory from the
    /// address `own` on. `base`: its device address; `None`: the address of the first mapping of
    /// the whole arena.
    pub(crate) fn create_arena(&self, length: u64, own: Option<u64>, base: Option<u64>) -> Result {
        let id = self.id()?;
        let end = |base: u64| {
            base.checked_add(length)
                .filter(|&end| end <= DEVICE_ADDRESS_END)
        };
        let page = PAGE_SIZE as u64;
        if length == 0 || length % page != 0 || length > self.card.limits.arena {
            return Err(EINVAL);
        }
        let is_wrong = |address: u64| address % page != 0 || end(address).is_none();
        if base.is_some_and(is_wrong) || own.is_some_and(is_wrong) {
            return Err(EINVAL);
        }
        if self.memory.lock().arena.is_some() {
            return Err(EEXIST);
        }
        let unmapped = self.unmapped_memory(usize::try_from(length)?, own)?;
        let device = self.card.enter()?;
        let arena = Arena {
            memory: unmapped.map(&device)?,
            device_base: base,
        };
        let mut memory = self.memory.lock();
        if memory.arena.is_some() {
            return Err(EEXIST);
        }
        self.publish_window(id, &arena)?;
        memory.arena = Some(arena);
        Ok(())
    }

    /// Returns memory for the card that is not mapped yet: allocated, or the caller's own from the
    /// address `own` on. The opener is charged. Must not be called inside the unplug gate.
    fn unmapped_memory(&self, length: usize, own: Option<u64>) -> Result<UnmappedMemory> {
        let kind = match own {
            Some(address) => Kind::Own(usize::try_from(address)?),
            None if self.card.translated => Kind::Scattered,
            None => Kind::Contiguous,
        };
        let uncharged = !kind.is_charged_to_cgroup(length);
        let counted = self.card.count_pinned(self, length as u64, uncharged)?;
        let charge = Charge::new(&self.opener.account, length, counted)?;
        UnmappedMemory::new(kind, length, charge)
    }

    /// Sets the window of the context's image, if the device address of the arena is known.
    fn publish_window(&self, id: ContextId, arena: &Arena) -> Result {
        let Some(window) = arena.window() else {
            return Ok(());
        };
        self.card.with_image(id, |image| image.set_window(window))
    }

    /// Starts a job and returns its number. `saved`: from the state in the snapshot buffer;
    /// `replayable`: the job may be restarted from its beginning.
    pub(crate) fn start(&self, replayable: bool, saved: bool) -> Result<u64> {
        let id = self.id()?;
        // Held to the end: no state is imported while the job begins.
        let mut memory = self.memory.lock();
        if self.card.view(id)?.stats.state.is_live() {
            return Err(EBUSY);
        }
        if replayable && self.card.reads_queue(self.card.params(id)?.mask) {
            return Err(EINVAL);
        }
        self.check_memory(id, &memory)?;
        if saved && !memory.holds_state() {
            return Err(errno::enodata());
        }
        let job = self.card.start(id, replayable, saved)?;
        memory.imported = false;
        Ok(job)
    }

    /// Checks that the context has the memory that a job needs.
    fn check_memory(&self, id: ContextId, memory: &Memory) -> Result {
        let snapshot = memory.snapshot()?;
        let has_window = self.card.with_image(id, |image| image.window().is_some())?;
        // A card without window check would let an engine without an arena access any memory.
        if !has_window && (memory.arena.is_some() || !self.card.identity.has_window()) {
            return Err(errno::edestaddrreq());
        }
        self.check_snapshot(self.card.params(id)?.mask, snapshot.length() as u64)
    }

    /// Declares the result registers.
    pub(crate) fn declare_results(&self, registers: &[AppRegister]) -> Result {
        let id = self.id()?;
        if self.card.view(id)?.stats.state.is_live() {
            return Err(EBUSY);
        }
        self.card
            .with_image(id, |image| image.declare_results(registers))
    }

    /// Returns the registers that the program has written, with their values, or the registers that
    /// it has declared as `results`, with zeros.
    pub(crate) fn list_registers(&self, results: bool) -> Result<KVec<(AppRegister, u64)>> {
        let id = self.id()?;
        // Nothing is allocated under the card's lock.
        let mut list = KVec::with_capacity(AppRegister::COUNT, GFP_KERNEL_ACCOUNT)?;
        self.card.with_image(id, |image| {
            image.list(results, |register, value| {
                // There is room for all registers.
                let _ = list.push_within_capacity((register, value));
            });
        })?;
        Ok(list)
    }

    /// Returns the state of the job. `None`: the context is not set up, or the card is gone and has
    /// forgotten it.
    pub(crate) fn view(&self) -> Option<View> {
        self.card.view(self.id().ok()?).ok()
    }

    /// Returns the sizes and the device address of the context's memory.
    pub(crate) fn memory_info(&self) -> MemoryInfo {
        let memory = self.memory.lock();
        MemoryInfo {
            arena_length: memory
                .arena
                .as_ref()
                .map_or(0, |arena| arena.memory.length() as u64),
            device_base: memory
                .arena
                .as_ref()
                .and_then(|arena| arena.device_base)
                .unwrap_or(0),
            snapshot_length: memory
                .snapshot
                .as_ref()
                .map_or(0, |snapshot| snapshot.length() as u64),
        }
    }

    /// Prepares a mapping of a part of the arena, into which [`Context::fault`] inserts pages.
    /// Called by the `mmap` file operation.
    pub(crate) fn map(&self, vma: &VmaNew) -> Result {
        let id = self.id()?;
        let mut memory = self.memory.lock();
        memory.check_present()?;
        let Memory { arena, mapping, .. } = &mut *memory;
        let arena = arena.as_mut().ok_or_else(errno::enxio)?;
        let length = vma.end() - vma.start();
        // SAFETY: `vma` is valid, and has the file that is being mapped.
        let (first_page, page_cache) = unsafe {
            let vma = vma.as_ptr();
            ((*vma).vm_pgoff, (*(*vma).vm_file).f_mapping)
        };
        let end = first_page
            .checked_mul(PAGE_SIZE)
            .and_then(|offset| offset.checked_add(length));
        if vma.flags() & flags::SHARED == 0
            || end.is_none_or(|end| end > arena.memory.length())
            || !arena.memory.is_allocated()
        {
            return Err(EINVAL);
        }
        // `EINVAL`: the mapping is executable.
        vma.try_clear_mayexec()?;
        vma.set_dontcopy();
        vma.set_dontexpand();
        vma.set_dontdump();
        vma.set_mixedmap();
        *mapping = page_cache;
        if arena.device_base.is_none() && length == arena.memory.length() {
            arena.device_base = Some(vma.start() as u64);
            self.publish_window(id, arena)?;
        }
        Ok(())
    }

    /// Inserts the page that backs `address`, page number `page` of the arena, and some of the
    /// pages behind it into `vma`. Returns `false` if the memory has been revoked. Called by the
    /// `fault` operation of a mapping that [`Context::map`] prepared.
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
    fn arena_pages(&self) -> Option<Arc<Pages>> {
        let memory = self.memory.lock();
        memory.check_present().ok()?;
        Some(memory.arena.as_ref()?.memory.pages().clone())
    }

    /// Ends the job and frees the memory, after the last descriptor was closed and the last mapping
    /// is gone. Sleeps until the slot is quiescent.
    pub(crate) fn release(&self) {
        let Ok(id) = self.id() else { return };
        self.card.close(id);
        self.notifier
            .queue()
            .wait_uninterruptible(|| self.notifier.has(Notice::Released) || self.card.is_stuck(id));
        self.memory.lock().mapping = ptr::null_mut();
        if self.card.leave_behind(self) {
            // A quarantined slot may still reach the memory: the registry keeps the context until
            // the whole card has been reset, or is shut down.
            return;
        }
        self.card.drop_released(id);
        match self.card.unregister(self) {
            Some(_bound) => self.free_memory(),
            // `Card::shut_down` revokes the memory while the device is bound.
            None => self
                .notifier
                .queue()
                .wait_uninterruptible(|| self.revoked.load(Acquire)),
        }
    }
}

/// The memory of a context whose owner is gone.
impl Context {
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

    /// Frees the arena and the snapshot buffer. The device is bound, and no DMA to them can come.
    pub(crate) fn free_memory(&self) {
        let freed = self.memory.lock().take();
        drop(freed);
    }
}

/// Takes the memory of `contexts` away from their programs and from the card. Accesses to mappings
/// give SIGBUS from now on. The device is bound, and no DMA can come.
pub(crate) fn revoke(contexts: &[Arc<Context>]) {
    for context in contexts {
        context.memory.lock().revoked = true;
    }
    let mut last = ptr::null_mut();
    for context in contexts {
        let memory = context.memory.lock();
        // The mappings of all contexts of a node are found through one page cache.
        if !memory.mapping.is_null() && memory.mapping != last {
            last = memory.mapping;
            // SAFETY: The page cache lives as long as the context's file. Before that is freed,
            // `Context::release` clears `mapping`, for which it needs the lock that is held.
            unsafe { bindings::unmap_mapping_range(last, 0, 0, 1) };
        }
    }
    for context in contexts {
        context.free_memory();
        context.revoked.store(true, Release);
        context.card.delivery.tell(&context.notifier, Notice::Gone);
    }
}

/// Returns the error number of a failed job, else 0.
pub(crate) fn job_error(state: JobState) -> u32 {
    match state {
        JobState::Failed(failure) => match failure {
            Failure::PreemptTimeout => bindings::ETIME,
            Failure::Fault => bindings::EFAULT,
            Failure::Snapshot => bindings::EIO,
            Failure::Protocol => bindings::EPROTO,
            Failure::Gone => bindings::ENODEV,
        },
        _ => 0,
    }
}
