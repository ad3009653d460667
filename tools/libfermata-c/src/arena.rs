// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a context shares with its engine.

use crate::context::{give, given, room, Context};
use crate::failure::{run, Failure};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

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

/// Makes the arena of the context, zeroed, and maps it: length is a multiple of the page size. Its device address is that of the mapping,
/// so that pointers are valid on both sides. After fork() the child does not have the mapping. An access after the card went raises SIGBUS.
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

/// Makes a part of the arena of another context of the card, lender, the arena of this context, too, and maps it.
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

/// Maps the arena that the context has already, as one of fermata_from_fd() may. -ENOENT: the context has no arena. -EDESTADDRREQ: nobody has mapped
/// the arena before, or its device address is 0.
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

/// Makes memory of the program's own the arena, with this device address: memory, length and base are multiples of the page size. The pages
/// stay pinned, and the engine's, until the context is closed, whatever becomes of their mapping.
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

/// Returns where the arena is mapped; NULL if arena is NULL.
#[no_mangle]
pub unsafe extern "C" fn fermata_arena_address(arena: *const Arena) -> *mut c_void {
    // SAFETY: the caller's pointer.
    let arena = unsafe { arena.as_ref() };
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

/// Ends the mapping of an arena, or leaves that to fermata_free_queue() if there are queues in the arena. The arena itself stays the
/// context's. NULL is ignored.
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
