// SPDX-License-Identifier: GPL-2.0-or-later
//! Creates a context from a checkpoint. Input is not trusted: checks what the driver does not
//! check.

use crate::content::{ArenaDescription, Content, Description, Job, Part, RETIRED_SHARE};
use crate::Refusal;
use fermata::{Arena, Context, Error, Param, Reservation};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// A context made from a checkpoint. Its job, if there is one, has not been started.
#[derive(Debug)]
pub struct Restored {
    /// The context.
    pub context: Context,
    /// The arena, if there is one.
    pub arena: Option<Arena>,
    /// The description in the checkpoint.
    pub description: Description,
    /// Parameters that this process may not set, or that cannot be kept, and whether the same is
    /// true of the reservation. They have their defaults.
    pub refused: (Vec<String>, bool),
}

impl Restored {
    /// Starts or resumes the job; does nothing for [`Job::None`].
    pub fn start(&self) -> Result<(), Error> {
        match self.description.job {
            Job::None => Ok(()),
            Job::New => self.context.start().map(drop),
            Job::Saved => self.context.start_saved().map(drop),
        }
    }
}

/// Memory of a context that the caller creates after the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absent {
    /// The arena.
    pub arena: bool,
    /// The snapshot buffer, with the engine's state.
    pub snapshot: bool,
}

/// Creates a context on the card `device` from a checkpoint, and reads the stream up to the end of
/// the checkpoint.
pub fn restore(from: impl Read, device: &Path) -> Result<Restored, Refusal> {
    read(&mut Content::new(from)?, device, Absent::default())
}

/// Like [`restore`], for a file that has nothing after the checkpoint.
pub fn restore_file(from: impl Read, device: &Path) -> Result<Restored, Refusal> {
    restore_without(from, device, Absent::default())
}

/// Like [`restore_file`], but leaves memory to the caller.
pub fn restore_without(
    from: impl Read,
    device: &Path,
    absent: Absent,
) -> Result<Restored, Refusal> {
    let mut content = Content::new(from)?;
    let restored = read(&mut content, device, absent)?;
    content.end().map(|()| restored)
}

fn read<R: Read>(
    content: &mut Content<R>,
    device: &Path,
    absent: Absent,
) -> Result<Restored, Refusal> {
    let (context, arena) = create(content.description(), device, absent)?;
    while let Some(part) = content.part()? {
        match part {
            Part::Described => {}
            Part::State(..) if absent.snapshot => {}
            Part::Arena(offset, bytes) => {
                if let Some(arena) = &arena {
                    arena.write(offset as usize, &bytes);
                }
            }
            Part::State(offset, bytes) => {
                let written = context.write_snapshot(offset, &bytes);
                written.map_err(at("the state is not taken"))?;
            }
        }
    }
    let description = content.description().clone();
    let refused = complete(&context, &description)?;
    Ok(Restored {
        context,
        arena,
        description,
        refused,
    })
}

/// Returns a function that adds the name of a call to the driver's error.
fn at(step: &'static str) -> impl Fn(Error) -> Refusal {
    move |error| Refusal::Driver(step, error)
}

/// Creates a context with its memory.
fn create(
    description: &Description,
    device: &Path,
    absent: Absent,
) -> Result<(Context, Option<Arena>), Refusal> {
    let context = Context::open(device).map_err(at("the card cannot be opened"))?;
    let card = context
        .card_info()
        .map_err(at("the card does not answer"))?;
    check_engine(&context, description)?;
    if let Some(arena) = &description.arena {
        if arena.length > card.max_arena {
            return Err(Refusal::TooLarge(format!(
                "an arena of {} bytes, where the card takes {}",
                arena.length, card.max_arena
            )));
        }
    }
    let setup = context.setup(description.engine(), 0);
    setup.map_err(at("no context of this engine"))?;
    let make = |arena: &ArenaDescription| {
        context.create_arena_at(arena.length as usize, arena.device_base)
    };
    let arena = description.arena.as_ref().filter(|_| !absent.arena);
    let arena = arena.map(make).transpose();
    let arena = arena.map_err(at("no arena of its size and address"))?;
    if !absent.snapshot {
        let snapshot = context.create_snapshot();
        snapshot.map_err(at("no room for the engine's state"))?;
    }
    Ok((context, arena))
}

/// Checks that the card has the engine, with the same size of state.
fn check_engine(context: &Context, description: &Description) -> Result<(), Refusal> {
    let engine = description.engine();
    let slots = context
        .slots_of(engine)
        .map_err(at("the card does not answer"))?;
    let Some(&slot) = slots.first() else {
        return Err(Refusal::Engine(engine.to_string()));
    };
    let info = context
        .slot_info(slot)
        .map_err(at("the card does not answer"))?;
    let here = u64::from(info.state_pages) * 4096;
    if description.state_bytes != here {
        return Err(Refusal::StateSize(description.state_bytes, here));
    }
    Ok(())
}

/// Writes registers and parameters, after everything has been read. Returns what was refused.
fn complete(context: &Context, description: &Description) -> Result<(Vec<String>, bool), Refusal> {
    let written = context.write_registers(&description.registers);
    written.map_err(at("the registers are not taken"))?;
    let declared = context.declare_results(&description.results);
    declared.map_err(at("the result registers are not taken"))?;
    let mut refused = Vec::new();
    for &(number, value) in &description.parameters {
        let Some(param) = Param::of(number) else {
            // Other unknown parameters were refused before.
            if number == RETIRED_SHARE && value != 0 {
                refused.push("Share".into());
            }
            continue;
        };
        // An older driver may lack a parameter.
        let is_set = context.param(param).is_ok_and(|now| now == value);
        if !is_set && context.set_param(param, value).is_err() {
            refused.push(format!("{param:?}"));
        }
    }
    let Some(reservation) = &description.reservation else {
        return Ok((refused, false));
    };
    let reservation = Reservation {
        budget: Duration::from_nanos(reservation.budget_ns),
        deadline: Duration::from_nanos(reservation.deadline_ns),
        period: Duration::from_nanos(reservation.period_ns),
    };
    Ok((refused, context.reserve(0, Some(reservation)).is_err()))
}
