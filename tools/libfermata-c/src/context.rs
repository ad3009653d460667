// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cards, contexts, and the memory that a context shares with its engine.

use crate::{run, Failure, Outcome};
use fermata::uapi::{CardInfo, SlotInfo, Status};
use fermata::{EngineId, Error, Reservation};
use std::ffi::{c_char, c_int, c_void, CStr, OsStr};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// One open file of a card: one tenant, with at most one job at a time.
pub struct Context {
    pub(crate) inner: fermata::Context,
    /// Used in messages.
    name: String,
}

impl Context {
    pub(crate) fn failure(&self, error: Error) -> Failure {
        Failure::Call(self.name.clone(), error, self.inner.explain(error))
    }

    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    pub(crate) fn check<T>(&self, result: fermata::Result<T>) -> Result<T, Failure> {
        result.map_err(|error| self.failure(error))
    }
}

/// # Safety
///
/// The pointer is NULL or valid for `'a`.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: as above.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::Argument(format!("{name} is NULL")))
}

/// Checks that a result has a place to go to. The memory there is not read.
pub(crate) fn room<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, Failure> {
    NonNull::new(pointer).ok_or_else(|| Failure::Argument(format!("{name} is NULL")))
}

/// # Safety
///
/// The pointer is NULL or that of a string, valid for `'a`.
unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a CStr, Failure> {
    room(pointer.cast_mut(), name)?;
    // SAFETY: as above, and not NULL.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// # Safety
///
/// The pointer is NULL or that of a string.
unsafe fn engine_of(pointer: *const c_char) -> Result<EngineId, Failure> {
    // SAFETY: as above.
    let name = unsafe { text(pointer, "engine") }?.to_string_lossy();
    EngineId::of(&name).map_err(|error| Failure::Argument(error.to_string()))
}

/// Gives an object to the program. The function that takes it back frees it.
///
/// # Safety
///
/// `place` is valid for writing.
pub(crate) unsafe fn give<T>(object: T, place: NonNull<*mut T>) {
    let object = Box::into_raw(Box::new(object));
    // SAFETY: as above.
    unsafe { place.write(object) };
}

/// Copies a structure of the driver to a program whose version of it has `size` bytes.
///
/// # Safety
///
/// `to` is NULL or valid for writing `size` bytes.
unsafe fn copy_out<T: Copy>(from: &T, to: *mut T, size: usize) -> Outcome {
    let to = room(to, "the structure")?.as_ptr().cast::<u8>();
    if size < 8 {
        return Err(Failure::Argument(format!(
            "size is {size}: give the sizeof of the structure"
        )));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: both sides have `known` bytes, and `to` has `size` bytes. The first member is the
    // structure's size, a u32.
    unsafe {
        to.write_bytes(0, size);
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(from).cast(), to, known);
        std::ptr::copy_nonoverlapping((known as u32).to_ne_bytes().as_ptr(), to, 4);
    }
    Ok(())
}

/// Returns the version of the library, as "0.1.0".
#[no_mangle]
pub extern "C" fn fermata_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Stores the number of cards of the machine in *found, and the numbers of the first `count` of
/// them, in ascending order, in numbers: card N is /dev/fermataN. numbers may be NULL if count is
/// 0.
#[no_mangle]
pub unsafe extern "C" fn fermata_cards(
    numbers: *mut u32,
    count: usize,
    found: *mut usize,
) -> c_int {
    run("look for cards", || {
        let found = room(found, "found")?;
        if count > 0 {
            room(numbers, "numbers")?;
        }
        let failure = |error| Failure::of_call("/dev".into(), error);
        let cards = fermata::card_numbers().map_err(failure)?;
        for (at, number) in cards.iter().take(count).enumerate() {
            // SAFETY: the caller has room for `count` numbers.
            unsafe { numbers.add(at).write(*number) };
        }
        // SAFETY: the caller's pointer.
        unsafe { found.write(cards.len()) };
        Ok(())
    })
}

/// Opens a card, such as "/dev/fermata0", and stores a new context in *context. fermata_close()
/// closes it.
#[no_mangle]
pub unsafe extern "C" fn fermata_open(device: *const c_char, context: *mut *mut Context) -> c_int {
    run("open the card", || {
        let context = room(context, "context")?;
        // SAFETY: the caller's string.
        let device = unsafe { text(device, "device") }?;
        let name = device.to_string_lossy().into_owned();
        let opened = fermata::Context::open(OsStr::from_bytes(device.to_bytes()));
        let inner = opened.map_err(|error| Failure::of_call(name.clone(), error))?;
        // SAFETY: the caller's pointer.
        unsafe { give(Context { inner, name }, context) };
        Ok(())
    })
}

/// Opens the first card that has the engine and accepts the context, and chooses the engine there,
/// like fermata_setup(). -ENOENT: no card has the engine.
#[no_mangle]
pub unsafe extern "C" fn fermata_open_engine(
    engine: *const c_char,
    context: *mut *mut Context,
) -> c_int {
    run("open a card that has the engine", || {
        let context = room(context, "context")?;
        // SAFETY: the caller's string.
        let engine = unsafe { engine_of(engine) }?;
        let name = format!("engine {engine}");
        let opened = fermata::Context::open_engine(engine);
        let inner = opened.map_err(|error| Failure::of_call(name.clone(), error))?;
        // SAFETY: the caller's pointer.
        unsafe { give(Context { inner, name }, context) };
        Ok(())
    })
}

/// Makes a context of the descriptor of an open card, for example one that was inherited or came
/// over a socket. fermata_close() then closes the descriptor. -ENOTTY: the descriptor is not a
/// card's. After any error the descriptor stays the caller's.
#[no_mangle]
pub unsafe extern "C" fn fermata_from_fd(fd: c_int, context: *mut *mut Context) -> c_int {
    run("make a context of a descriptor", || {
        let context = room(context, "context")?;
        if fd < 0 {
            return Err(Failure::Argument(format!("{fd} is no descriptor")));
        }
        let name = format!("descriptor {fd}");
        // SAFETY: the caller gives the descriptor away.
        let inner = fermata::Context::from_file(unsafe { OwnedFd::from_raw_fd(fd) });
        match inner.status() {
            Ok(_) => {
                // SAFETY: the caller's pointer.
                unsafe { give(Context { inner, name }, context) };
                Ok(())
            }
            Err(error) => {
                std::mem::forget(inner);
                Err(Failure::of_call(name, error))
            }
        }
    })
}

/// Closes a context. A job that has not ended is lost, unless memory of the arena is still mapped:
/// this memory stays mapped, and keeps the job running. NULL is ignored.
#[no_mangle]
pub unsafe extern "C" fn fermata_close(context: *mut Context) {
    let _ = run("close a context", || {
        if let Some(context) = NonNull::new(context) {
            // SAFETY: made by `give`, and no other call uses it.
            drop(unsafe { Box::from_raw(context.as_ptr()) });
        }
        Ok(())
    });
}

/// Returns the descriptor of the context, for poll(). POLLIN: the job is done; POLLPRI: it is held;
/// POLLERR and POLLHUP: the card is gone (struct fermata_wait in fermata.h has the other events).
/// The descriptor stays the context's. -1: context is NULL.
#[no_mangle]
pub unsafe extern "C" fn fermata_fd(context: *const Context) -> c_int {
    let mut fd = -1;
    run("tell the descriptor", || {
        // SAFETY: the caller's pointer.
        fd = unsafe { given(context, "context") }?
            .inner
            .as_fd()
            .as_raw_fd();
        Ok(())
    });
    fd
}

/// Gets the properties of the card.
#[no_mangle]
pub unsafe extern "C" fn fermata_get_card_info(
    context: *const Context,
    info: *mut CardInfo,
    size: usize,
) -> c_int {
    run("tell what the card is", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let got = context.check(context.inner.card_info())?;
        // SAFETY: the caller's pointer and size.
        unsafe { copy_out(&got, info, size) }
    })
}

/// Gets the properties and counters of a slot. Slots are counted from 0.
#[no_mangle]
pub unsafe extern "C" fn fermata_get_slot_info(
    context: *const Context,
    slot: u32,
    info: *mut SlotInfo,
    size: usize,
) -> c_int {
    run("tell what the slot is", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let got = context.check(context.inner.slot_info(slot))?;
        // SAFETY: the caller's pointer and size.
        unsafe { copy_out(&got, info, size) }
    })
}

/// Gets the state and the counters of the context.
#[no_mangle]
pub unsafe extern "C" fn fermata_get_status(
    context: *const Context,
    status: *mut Status,
    size: usize,
) -> c_int {
    run("tell the state of the context", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let got = context.check(context.inner.status())?;
        // SAFETY: the caller's pointer and size.
        unsafe { copy_out(&got, status, size) }
    })
}

/// Chooses the engine, by its UUID or, for engines of the emulated card, by its name, and the slots
/// by a mask (0: all slots that have the engine).
#[no_mangle]
pub unsafe extern "C" fn fermata_setup(
    context: *const Context,
    engine: *const c_char,
    slot_mask: u32,
) -> c_int {
    run("choose the engine", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        // SAFETY: the caller's string.
        let engine = unsafe { engine_of(engine) }?;
        context
            .check(context.inner.setup(engine, slot_mask))
            .map(drop)
    })
}

/// Gets the value of a parameter (FERMATA_PARAM_*).
#[no_mangle]
pub unsafe extern "C" fn fermata_get_param(
    context: *const Context,
    param: u32,
    value: *mut u64,
) -> c_int {
    run("tell a parameter", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let value = room(value, "value")?;
        let got = context.check(context.inner.param(param_of(param)?))?;
        // SAFETY: the caller's pointer.
        unsafe { value.write(got) };
        Ok(())
    })
}

/// Sets a parameter (FERMATA_PARAM_*).
#[no_mangle]
pub unsafe extern "C" fn fermata_set_param(
    context: *const Context,
    param: u32,
    value: u64,
) -> c_int {
    run("set a parameter", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        context.check(context.inner.set_param(param_of(param)?, value))
    })
}

fn param_of(number: u32) -> Result<fermata::Param, Failure> {
    fermata::Param::of(number).ok_or_else(|| {
        Failure::Argument(format!(
            "there is no parameter {number}: give a FERMATA_PARAM_* of fermata.h"
        ))
    })
}

/// Reserves time on a slot: a budget in nanoseconds, by a deadline after the beginning of each
/// period (struct fermata_reserve in fermata.h). All three 0: drops the reservation. -EBUSY: there
/// is not enough unreserved time. -EPERM: this takes CAP_SYS_NICE.
#[no_mangle]
pub unsafe extern "C" fn fermata_reserve(
    context: *const Context,
    budget_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
) -> c_int {
    run("reserve time", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let reservation = Reservation {
            budget: Duration::from_nanos(budget_ns),
            deadline: Duration::from_nanos(deadline_ns),
            period: Duration::from_nanos(period_ns),
        };
        let is_any = (budget_ns, deadline_ns, period_ns) != (0, 0, 0);
        context.check(context.inner.reserve(0, is_any.then_some(reservation)))
    })
}

/// Announces that a job will be started in this many nanoseconds, at most 10 s (struct fermata_hint
/// in fermata.h). UINT64_MAX withdraws the announcement.
#[no_mangle]
pub unsafe extern "C" fn fermata_hint(context: *const Context, ahead_ns: u64) -> c_int {
    run("announce a job", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let ahead = (ahead_ns != u64::MAX).then(|| Duration::from_nanos(ahead_ns));
        context.check(context.inner.hint(ahead))
    })
}

/// Joins the gang of the context with this number (struct fermata_gang in fermata.h); 0: leaves the
/// gang.
#[no_mangle]
pub unsafe extern "C" fn fermata_join_gang(context: *const Context, number: u32) -> c_int {
    run("join a gang", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        context.check(match number {
            0 => context.inner.leave_gang(),
            number => context.inner.join_gang(number),
        })
    })
}

/// The memory of a context, as the program has it mapped.
pub struct Arena {
    pub(crate) inner: Arc<fermata::Arena>,
}

impl Arena {
    fn new(arena: fermata::Arena) -> Self {
        Self {
            inner: Arc::new(arena),
        }
    }
}

/// Refuses an arena that is not mapped in this process.
pub(crate) fn check_mapped(arena: &fermata::Arena) -> Result<(), Failure> {
    if arena.is_mapped() {
        return Ok(());
    }
    Err(Failure::Argument(
        "the arena is not mapped in a child of fork(): open a context in the child".into(),
    ))
}

/// Creates the arena of the context, zeroed, and maps it. length is a multiple of the page size.
/// The device address is the address of the mapping, so that pointers are valid on both sides.
/// A child of fork() does not have the mapping. An access after the card is gone raises SIGBUS.
#[no_mangle]
pub unsafe extern "C" fn fermata_create_arena(
    context: *const Context,
    length: usize,
    arena: *mut *mut Arena,
) -> c_int {
    run("make the arena", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let arena = room(arena, "arena")?;
        let made = context.check(context.inner.create_arena(length))?;
        // SAFETY: the caller's pointer.
        unsafe { give(Arena::new(made), arena) };
        Ok(())
    })
}

/// Makes a part of the arena of lender, another context of the card, also the arena of this
/// context, and maps it.
#[no_mangle]
pub unsafe extern "C" fn fermata_share_arena(
    context: *const Context,
    lender: *const Context,
    offset: usize,
    length: usize,
    arena: *mut *mut Arena,
) -> c_int {
    run("share an arena", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        // SAFETY: the caller's pointers.
        let lender = unsafe { given(lender, "lender") }?;
        let arena = room(arena, "arena")?;
        let shared = context.inner.share_arena(&lender.inner, offset, length);
        let shared = context.check(shared)?;
        // SAFETY: the caller's pointer.
        unsafe { give(Arena::new(shared), arena) };
        Ok(())
    })
}

/// Maps the arena that the context already has, for example after fermata_from_fd(). -ENOENT: the
/// context has no arena. -EDESTADDRREQ: the arena was never mapped, or its device address is 0.
#[no_mangle]
pub unsafe extern "C" fn fermata_map_arena(
    context: *const Context,
    arena: *mut *mut Arena,
) -> c_int {
    run("map the arena", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let arena = room(arena, "arena")?;
        let mapped = context.check(context.inner.map_arena())?;
        let mapped = mapped.ok_or_else(|| context.failure(fermata::Error::NotFound))?;
        // SAFETY: the caller's pointer.
        unsafe { give(Arena::new(mapped), arena) };
        Ok(())
    })
}

/// Makes memory of the program's own the arena, with this device address. memory, length and base
/// are multiples of the page size. The pages stay pinned, and accessible to the engine, until the
/// context is closed, even if they are unmapped before.
#[no_mangle]
pub unsafe extern "C" fn fermata_use_memory(
    context: *const Context,
    memory: *mut c_void,
    length: usize,
    base: u64,
) -> c_int {
    run("make the program's memory the arena", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let memory = room(memory, "memory")?.cast();
        // SAFETY: the memory is the caller's, who knows that jobs write to it.
        context.check(unsafe { context.inner.use_memory(memory, length, base) })
    })
}

/// Returns where the arena is mapped; NULL if arena is NULL, or in a child of fork().
#[no_mangle]
pub unsafe extern "C" fn fermata_arena_address(arena: *const Arena) -> *mut c_void {
    // SAFETY: the caller's pointer.
    let arena = unsafe { arena.as_ref() }.filter(|arena| arena.inner.is_mapped());
    arena.map_or(std::ptr::null_mut(), |arena| {
        arena.inner.as_ptr().as_ptr().cast()
    })
}

/// Returns the device address of the arena's first byte; 0 if arena is NULL.
#[no_mangle]
pub unsafe extern "C" fn fermata_arena_base(arena: *const Arena) -> u64 {
    // SAFETY: the caller's pointer.
    let arena = unsafe { arena.as_ref() };
    arena.map_or(0, |arena| arena.inner.base())
}

/// Returns the length of the arena in bytes; 0 if arena is NULL.
#[no_mangle]
pub unsafe extern "C" fn fermata_arena_length(arena: *const Arena) -> usize {
    // SAFETY: the caller's pointer.
    let arena = unsafe { arena.as_ref() };
    arena.map_or(0, |arena| arena.inner.length())
}

/// Ends the mapping of an arena, or leaves this to fermata_free_queue() if there are queues in the
/// arena. The arena itself stays the context's. NULL is ignored.
#[no_mangle]
pub unsafe extern "C" fn fermata_unmap_arena(arena: *mut Arena) {
    let _ = run("end a mapping", || -> Result<(), Failure> {
        if let Some(arena) = NonNull::new(arena) {
            // SAFETY: made by `give`, and no other call uses it.
            drop(unsafe { Box::from_raw(arena.as_ptr()) });
        }
        Ok(())
    });
}
