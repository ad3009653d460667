// SPDX-License-Identifier: GPL-2.0

//! A context: one open file description, one tenant's use of a card.

mod past;
mod snapshot;

use crate::{
    capability,
    card::{Card, Registry, View},
    charge::Charge,
    client::{Arena, Client, Lender, Memory, Setup},
    compat::errno,
    dma_memory::{Kind, UnmappedMemory},
    image::{AppRegister, ContextRef},
    notifier::Notice,
    scheduler::{ContextConfig, ContextId, Failure, GroupKey, JobState, NewJob, Params},
    user_memory::{mm_of_caller, UserMemory},
};
use core::ptr;
use kernel::{
    bindings,
    cred::Credential,
    fs::{File, LocalFile},
    mm::virt::{flags, VmaNew},
    page::PAGE_SIZE,
    prelude::*,
    sync::{aref::ARef, atomic::Acquire, Arc},
    types::ForeignOwnable,
};

/// The end of device addresses: that of the addresses a program's own memory can have.
const DEVICE_ADDRESS_END: u64 = 1 << 47;

/// The offset of a mapping, in pages, is this times (the context's index + 1), plus the page of the
/// arena (`FERMATA_MMAP_OFFSET`).
pub(crate) const MMAP_CONTEXT: usize = DEVICE_ADDRESS_END as usize / PAGE_SIZE;

/// A context that maps memory which another context has pinned is charged a 64th of its size: the
/// page tables of the IOMMU, which are charged to nobody, have a 512th of its size, and addresses
/// for the card are scarce.
const SHARED_COST: usize = 64;

/// Where the memory of an arena comes from.
pub(crate) enum Source {
    Allocated,
    /// A program's own memory.
    Own(UserMemory),
    /// Another context's arena, from this offset on.
    Shared {
        with: ContextFile,
        offset: u64,
    },
}

/// A context whose file is held.
pub(crate) struct ContextFile(ARef<File>);

impl ContextFile {
    /// Returns the context of the descriptor `fd`, which must have the operations of `ours`.
    /// `EBADF`: there is no such descriptor. `EINVAL`: it is not that of a context.
    pub(crate) fn get(fd: i32, ours: &LocalFile) -> Result<Self> {
        let file = LocalFile::fget(u32::try_from(fd).map_err(|_| EBADF)?)?;
        // SAFETY: Both files are held.
        let (its, wanted) = unsafe { ((*file.as_ptr()).f_op, (*ours.as_ptr()).f_op) };
        if !ptr::eq(its, wanted) {
            return Err(EINVAL);
        }
        // SAFETY: A call does not hold the lock of a file position.
        Ok(Self(unsafe { LocalFile::assume_no_fdget_pos(file) }))
    }

    /// Returns the context.
    fn context(&self) -> &Context {
        // SAFETY: The file has the operations of `ours`, so it was opened like `ours`, and is held.
        unsafe { Context::of_file(self.0.as_ptr()) }
    }

    /// Returns the context as the lender of an arena. `ENXIO`: the context is not set up.
    fn into_lender(self) -> Result<Lender> {
        let number = self.context().client.number()?;
        Ok(Lender::new(self.0, number))
    }
}

/// One tenant's use of a card: an open file description.
pub(crate) struct Context {
    pub(crate) card: Arc<Card>,
    pub(crate) client: Arc<Client>,
}

impl Context {
    /// Returns a context of the caller, who opens `card` with a file that has the credentials
    /// `credential`.
    pub(crate) fn new(card: Arc<Card>, credential: &Credential) -> Result<Self> {
        let client = Client::new(credential)?;
        card.note_open(client.opener.first_pid);
        Ok(Self { card, client })
    }

    /// Returns the context of `file`.
    ///
    /// # Safety
    ///
    /// The private data of `file` must be a `KBox<Context>`, and `file` must not be released as
    /// long as `'a`.
    pub(crate) unsafe fn of_file<'a>(file: *mut bindings::file) -> &'a Self {
        // SAFETY: By the safety requirement.
        unsafe { KBox::<Self>::borrow((*file).private_data) }
    }

    /// Returns the context's number in the scheduler. `ENXIO`: the context is not set up.
    pub(crate) fn id(&self) -> Result<ContextId> {
        self.client.id()
    }

    /// Returns the context's group: before set-up, the group that the context would join now.
    pub(crate) fn group(&self) -> GroupKey {
        if self.client.is_set_up() {
            self.client.group()
        } else {
            self.card.group_of(&self.client.opener)
        }
    }

    /// Changes the parameters of the context with `change`.
    pub(crate) fn change_params(&self, change: impl FnOnce(&mut Params)) -> Result {
        self.card.set_params(self.id()?, change)
    }

    /// Sets the slots that the context may use from now on. `EPROTO`: the state of one of them is
    /// larger than the snapshot buffer.
    pub(crate) fn set_slots(&self, slots: u8) -> Result {
        let id = self.id()?;
        let memory = self.client.memory.lock();
        if let Some(snapshot) = &memory.snapshot {
            self.check_snapshot(slots, snapshot.length() as u64)?;
        }
        self.card.set_params(id, |params| params.mask = slots)
    }

    /// Sets the context up for the engine `afu_id` on the slots `mask` (0: all that have the
    /// engine).
    pub(crate) fn set_up(&self, afu_id: (u64, u64), mask: u32) -> Result {
        let mut part = self.client.part.lock();
        if self.client.is_set_up() {
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
        self.card.register(self.client.clone(), |registry| {
            self.join(registry, &mut part, slots, able)
        })
    }

    /// Checks that the card cannot access memory of others, or that the caller may let it. `EPERM`.
    /// Without a window check, only an IOMMU separates tenants from the host, and nothing separates
    /// tenants from each other.
    fn check_separation(&self) -> Result {
        let is_apart = self.card.translated && !self.card.has_neighbours();
        if self.card.identity.has_window() || is_apart {
            return Ok(());
        }
        if !capability::may_touch_all_memory() {
            return Err(EPERM);
        }
        Ok(())
    }

    /// Checks that the context may be set up beside the other contexts. `EBUSY`: nothing separates
    /// it from another user's; `EDQUOT`: a group that it belongs to has too many contexts.
    fn check_others(&self, registry: &Registry) -> Result {
        let mut others = registry.clients().iter();
        let is_foreign = |other: &Arc<Client>| !self.client.opener.is_same_user(&other.opener);
        if !self.card.identity.has_window() && others.any(is_foreign) {
            return Err(EBUSY);
        }
        let mut all = registry.bounds_of(&self.client.opener, &self.card.limits);
        if all.any(|bounds| registry.bound_by(&bounds).count() >= bounds.contexts)
            && !capability::has_cap_sys_resource()
        {
            return Err(errno::edquot());
        }
        Ok(())
    }

    /// Adds the context to the card's scheduler, for `slots` of the slots `able` that have its
    /// engine. The registry is locked, so a concurrent change of groups either finds the context
    /// set up, or is complete.
    fn join(
        &self,
        registry: &Registry,
        part: &mut Option<ContextRef>,
        slots: u8,
        able: u8,
    ) -> Result {
        let group = registry.path_of(&self.client.opener);
        self.check_others(registry)?;
        let config = ContextConfig {
            class: self.card.class_of(slots.trailing_zeros() as usize),
            params: Params {
                mask: slots,
                cooperative: self.card.is_boundary_only(slots),
                ..self.card.limits.params
            },
            group,
        };
        let id = self.card.add(config, part)?;
        self.client.put_group(group.group);
        // Nobody else can have set it: the lock of `part` is held.
        self.client.setup.populate(Setup { id, engine: able });
        Ok(())
    }

    /// Makes an arena of `length` bytes. `base`: its device address; `None`: the address of the
    /// first mapping of the whole arena.
    pub(crate) fn create_arena(&self, length: u64, from: Source, base: Option<u64>) -> Result {
        let id = self.id()?;
        self.card
            .check_neighbours(self.card.may_reach_neighbours())?;
        self.check_arena(length, &from, base)?;
        if self.client.memory.lock().arena.is_some() {
            return Err(EEXIST);
        }
        let length = usize::try_from(length)?;
        let own = match &from {
            Source::Own(memory) => Some(memory.address()),
            _ => None,
        };
        let (unmapped, lender) = match from {
            Source::Shared { with, offset } => {
                let (shared, lender) = self.shared_memory(with, offset, length, base)?;
                (shared, Some(lender))
            }
            Source::Own(memory) => (self.unmapped_memory(length, Some(memory))?, None),
            Source::Allocated => (self.unmapped_memory(length, None)?, None),
        };
        let device = self.card.enter()?;
        let arena = Arena {
            memory: unmapped.map(&device)?,
            device_base: base,
            own,
            lender,
            counted: None,
        };
        let mut memory = self.client.memory.lock();
        if memory.arena.is_some() {
            return Err(EEXIST);
        }
        self.publish_window(id, &arena)?;
        memory.arena = Some(arena);
        Ok(())
    }

    /// Checks the length, the source and the device address of an arena. `EINVAL`.
    fn check_arena(&self, length: u64, from: &Source, base: Option<u64>) -> Result {
        let page = PAGE_SIZE as u64;
        let end = |address: u64| address.checked_add(length);
        let is_wrong = |address: u64| {
            address % page != 0 || end(address).is_none_or(|end| end > DEVICE_ADDRESS_END)
        };
        let is_wrong_source = match from {
            Source::Allocated => false,
            Source::Own(memory) => is_wrong(memory.address()),
            Source::Shared { offset, .. } => offset % page != 0,
        };
        let is_wrong_length = length == 0 || length % page != 0 || length > self.card.limits.arena;
        match is_wrong_length || is_wrong_source || base.is_some_and(is_wrong) {
            true => Err(EINVAL),
            false => Ok(()),
        }
    }

    /// Returns the kind of memory that the driver allocates.
    fn allocated(&self) -> Kind {
        match self.card.translated {
            true => Kind::Scattered,
            false => Kind::Contiguous,
        }
    }

    /// Returns memory for the card that is not mapped yet: allocated, or a program's `own`. The
    /// opener is charged. Must not be called inside the unplug gate.
    fn unmapped_memory(&self, length: usize, own: Option<UserMemory>) -> Result<UnmappedMemory> {
        let (kind, mm) = match own {
            Some(memory) => {
                let mm = memory.mm();
                (Kind::Own(memory), mm)
            }
            None => (self.allocated(), mm_of_caller()),
        };
        let uncharged = !kind.is_charged_to_cgroup(length);
        let counted = self
            .card
            .count_pinned(&self.client, length as u64, uncharged)?;
        let charge = Charge::new(&self.client.opener.account, mm, length, counted)?;
        UnmappedMemory::new(kind, length, Some(charge))
    }

    /// Returns `length` bytes of the arena of `with` from `offset` on, which are not mapped yet,
    /// and the context that is charged for them. The opener is charged for the mapping. `EXDEV`:
    /// `with` is a context of another card; `ENXIO`: it has no arena; `EINVAL`: the arena has no
    /// such part, or there is neither a device address nor memory that can be mapped.
    fn shared_memory(
        &self,
        with: ContextFile,
        offset: u64,
        length: usize,
        base: Option<u64>,
    ) -> Result<(UnmappedMemory, Lender)> {
        let other = with.context();
        if !ptr::eq(&*self.card, &*other.card) {
            return Err(EXDEV);
        }
        let (pages, lender) = {
            let memory = other.client.memory.lock();
            memory.check_present()?;
            let arena = memory.arena.as_ref().ok_or_else(errno::enxio)?;
            let first = usize::try_from(offset)? / PAGE_SIZE;
            let pages = arena.memory.pages().part(first, length / PAGE_SIZE)?;
            (pages, arena.lender.clone())
        };
        // If `with` shares memory of another context itself, only that context has to stay open.
        let lender = lender.map_or_else(|| with.into_lender(), Ok)?;
        if base.is_none() && !pages.are_allocated() {
            return Err(EINVAL);
        }
        let cost = length.div_ceil(SHARED_COST);
        let counted = self.card.count_pinned(&self.client, cost as u64, false)?;
        let charge = Charge::new(&self.client.opener.account, mm_of_caller(), cost, counted)?;
        Ok((UnmappedMemory::shared(pages, charge)?, lender))
    }

    /// Sets the window of the context's image, if the device address of the arena is known.
    fn publish_window(&self, id: ContextId, arena: &Arena) -> Result {
        let Some(window) = arena.window() else {
            return Ok(());
        };
        self.card.with_image(id, |image| image.set_window(window))
    }

    /// Starts a job and returns its number.
    pub(crate) fn start(&self, job: NewJob) -> Result<u64> {
        let id = self.id()?;
        // Held to the end: no state is imported while the job begins.
        let mut memory = self.client.memory.lock();
        let number = self.card.start(id, job, |slots, has_window| {
            if job.replayable && self.card.reads_queue(slots) {
                return Err(EINVAL);
            }
            self.check_memory(&memory, slots, has_window)?;
            if job.saved && !memory.holds_state() {
                return Err(errno::enodata());
            }
            Ok(())
        })?;
        memory.imported = false;
        Ok(number)
    }

    /// Checks that the context has the memory that a job on `slots` needs.
    fn check_memory(&self, memory: &Memory, slots: u8, has_window: bool) -> Result {
        let snapshot = memory.snapshot()?;
        // A card without window check would let an engine without an arena access any memory.
        if !has_window && (memory.arena.is_some() || !self.card.identity.has_window()) {
            return Err(errno::edestaddrreq());
        }
        self.check_snapshot(slots, snapshot.length() as u64)
    }

    /// Declares the result registers.
    pub(crate) fn declare_results(&self, registers: &[AppRegister]) -> Result {
        self.card.declare_results(self.id()?, registers)
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

    /// Returns the state of the job. `None`: the context is not set up.
    pub(crate) fn view(&self) -> Option<View> {
        self.card.view(self.id().ok()?).ok()
    }

    /// Prepares a mapping of a part of the arena, into which [`Client::fault`] inserts pages.
    /// Called by the `mmap` file operation.
    pub(crate) fn map(&self, vma: &VmaNew) -> Result {
        let id = self.id()?;
        let mut memory = self.client.memory.lock();
        memory.check_present()?;
        let Memory { arena, mapping, .. } = &mut *memory;
        let arena = arena.as_mut().ok_or_else(errno::enxio)?;
        let length = vma.end() - vma.start();
        // SAFETY: `vma` is valid, and has the file that is being mapped.
        let (offset, page_cache) = unsafe {
            let vma = vma.as_ptr();
            ((*vma).vm_pgoff, (*(*vma).vm_file).f_mapping)
        };
        let base = (id.index() + 1) * MMAP_CONTEXT;
        let first_page = offset.checked_sub(base).unwrap_or(offset);
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
        // The offset in /proc/PID/maps tells which context a mapping belongs to.
        // SAFETY: `vma` is valid, and nobody else uses it yet.
        unsafe { (*vma.as_ptr()).vm_pgoff = base + first_page };
        *mapping = page_cache;
        if arena.device_base.is_none() && length == arena.memory.length() {
            arena.device_base = Some(vma.start() as u64);
            self.publish_window(id, arena)?;
        }
        Ok(())
    }

    /// Ends the job and frees the memory, after the last descriptor was closed and the last mapping
    /// was removed. Sleeps until the slot is quiescent.
    pub(crate) fn release(&self) {
        let Ok(id) = self.id() else { return };
        self.card.close(id);
        let notifier = &self.client.notifier;
        let is_over = || notifier.has(Notice::Released) || self.card.is_stuck(id);
        notifier.queue().wait_uninterruptible(is_over);
        self.client.memory.lock().mapping = ptr::null_mut();
        if self.card.leave_behind(&self.client) {
            // A quarantined slot may still reach the memory: the registry keeps the context until
            // the whole card has been reset, or is shut down. The lender of the memory may close.
            drop(self.take_lender());
            return;
        }
        self.card.drop_released(id);
        match self.card.unregister(&self.client) {
            Some(_bound) => self.client.free_memory(),
            // `Card::shut_down` revokes the memory while the device is bound.
            None => {
                let is_revoked = || self.client.revoked.load(Acquire);
                notifier.queue().wait_uninterruptible(is_revoked);
            }
        }
    }

    /// Takes the lender out of the arena.
    fn take_lender(&self) -> Option<Lender> {
        let mut memory = self.client.memory.lock();
        let arena = &memory.arena.as_ref()?.memory;
        let length = arena.pages().kept() * PAGE_SIZE;
        let uncharged = arena.is_allocated() && !self.allocated().is_charged_to_cgroup(length);
        memory.take_lender(&self.client.pinned, uncharged)
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
