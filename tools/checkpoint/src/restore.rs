// SPDX-License-Identifier: GPL-2.0-or-later
//! From a checkpoint to a context. Nothing of it is trusted: what the driver does not check is
//! checked here.

use crate::content::{Content, Part};
use crate::description::{ArenaDescription, Description, Job};
use crate::Refusal;
use fermata::{Arena, Context, EngineId, Error, Param, Reservation};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// A context made from a checkpoint; its job, if there is one, does not run yet.
#[derive(Debug)]
pub struct Restored {
    /// The context.
    pub context: Context,
    /// Its arena, if it has one.
    pub arena: Option<Arena>,
    /// What the checkpoint said of it.
    pub description: Description,
    /// Parameters that this process may not set, or that cannot be kept here: they are the default.
    /// And whether that is so of the reservation.
    pub refused: (Vec<Param>, bool),
}

impl Restored {
    /// Lets the job go on. [`Job::None`]: there is nothing to do.
    pub fn start(&self) -> Result<(), Error> {
        match self.description.job {
            Job::None => Ok(()),
            Job::New => self.context.start().map(drop),
            Job::Saved => self.context.start_saved().map(drop),
        }
    }
}

/// Makes a context of the card `device` from a checkpoint, to whose end it reads.
pub fn restore(from: impl Read, device: &Path) -> Result<Restored, Refusal> {
    read(&mut Content::new(from)?, device)
}

/// As [`restore`], of a file that has nothing else.
pub fn restore_file(from: impl Read, device: &Path) -> Result<Restored, Refusal> {
    let mut content = Content::new(from)?;
    let restored = read(&mut content, device)?;
    content.end().map(|()| restored)
}

fn read<R: Read>(content: &mut Content<R>, device: &Path) -> Result<Restored, Refusal> {
    let (context, arena) = create(content.description(), device)?;
    while let Some(part) = content.part()? {
        match part {
            Part::Described => {}
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

/// Says at which step the driver refused.
fn at(step: &'static str) -> impl Fn(Error) -> Refusal {
    move |error| Refusal::Driver(step, error)
}

/// Makes the context with its memory, empty.
fn create(description: &Description, device: &Path) -> Result<(Context, Option<Arena>), Refusal> {
    let context = Context::open(device).map_err(at("the card cannot be opened"))?;
    let card = context
        .card_info()
        .map_err(at("the card does not answer"))?;
    if description.interface > card.uapi_version {
        return Err(Refusal::Interface(description.interface, card.uapi_version));
    }
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
    let arena = description.arena.as_ref().map(make).transpose();
    let arena = arena.map_err(at("no arena of its size and address"))?;
    let snapshot = context.create_snapshot();
    snapshot.map_err(at("no room for the engine's state"))?;
    Ok((context, arena))
}

/// Whether the card has the engine, in the version whose states are of that size.
fn check_engine(context: &Context, description: &Description) -> Result<(), Refusal> {
    let engine = description.engine();
    let slots = context
        .slots_of(engine)
        .map_err(at("the card does not answer"))?;
    let Some(&slot) = slots.first() else {
        return Err(Refusal::Engine(name_of(engine)));
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

/// As UUIDs are written.
pub fn name_of(engine: EngineId) -> String {
    let (high, low) = (engine.high, engine.low);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// All has come: what the description says of registers and parameters is done. Returns what is
/// refused.
fn complete(context: &Context, description: &Description) -> Result<(Vec<Param>, bool), Refusal> {
    let written = context.write_registers(&description.registers);
    written.map_err(at("the registers are not taken"))?;
    let declared = context.declare_results(&description.results);
    declared.map_err(at("the result registers are not taken"))?;
    let mut refused = Vec::new();
    for &(number, value) in &description.parameters {
        // Others have been refused.
        let Some(param) = Param::of(number) else {
            continue;
        };
        let now = context
            .param(param)
            .map_err(at("the card does not answer"))?;
        if now != value && context.set_param(param, value).is_err() {
            refused.push(param);
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
