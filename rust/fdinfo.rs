// SPDX-License-Identifier: GPL-2.0

//! The contents of /proc/PID/fdinfo/FD for a context, in the form of
//! Documentation/gpu/drm-usage-stats.rst (docs/statistics.md gives the reasons).

use crate::{
    context::Context,
    engine_id::EngineId,
    scheduler::{JobState, Stats},
};
use kernel::{
    fmt,
    seq_file::{seq_print, SeqFile},
};

/// Prints the memory, the state and the counters of `context`. Process context; any state of
/// context and card.
pub(crate) fn show(seq: &SeqFile, context: &Context) {
    let card = &context.card;
    seq_print!(seq, "drm-driver:\tfermata\n");
    seq_print!(seq, "drm-pdev:\t{}\n", card.name());
    if let Ok(number) = context.client.number() {
        seq_print!(seq, "drm-client-id:\t{number}\n");
    }
    show_memory(seq, context);
    let Some(view) = context.view().filter(|_| !card.is_gone()) else {
        let state = if card.is_gone() { "gone" } else { "new" };
        seq_print!(seq, "fermata-state:\t{state}\n");
        return;
    };
    show_engine(seq, context, &view.stats);
    show_job(seq, &view.stats);
    seq_print!(seq, "fermata-faults:\t{}\n", view.faults);
    seq_print!(seq, "fermata-overruns:\t{}\n", view.overruns);
    seq_print!(seq, "fermata-overrun:\t{} ns\n", view.overrun.as_ns());
}

/// Prints the time on slots that have the context's engine.
fn show_engine(seq: &SeqFile, context: &Context, stats: &Stats) {
    let slots = context.client.engine_slots();
    let Some((slot, _)) = context.card.slot(slots.trailing_zeros()) else {
        return;
    };
    let engine = EngineKey(context.card.engine_id(slot));
    seq_print!(seq, "drm-engine-{engine}:\t{} ns\n", stats.run.as_ns());
    seq_print!(
        seq,
        "drm-engine-capacity-{engine}:\t{}\n",
        slots.count_ones()
    );
}

/// An engine in the form of a key: its name, or its UUID if the driver does not know the engine.
struct EngineKey(EngineId);

impl fmt::Display for EngineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.name() {
            Some(name) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

/// Prints the context's memory. All of it is pinned from its allocation on.
fn show_memory(seq: &SeqFile, context: &Context) {
    let memory = context.client.memory_info();
    let total = memory.arena_length + memory.snapshot_length;
    seq_print!(seq, "drm-total-memory:\t{total}\n");
    let shared = memory.lender.map_or(0, |_| memory.arena_length);
    seq_print!(seq, "drm-shared-memory:\t{shared}\n");
    seq_print!(seq, "drm-resident-memory:\t{total}\n");
    seq_print!(seq, "fermata-arena:\t{}\n", memory.arena_length);
    seq_print!(seq, "fermata-snapshot:\t{}\n", memory.snapshot_length);
    if let Some(lender) = memory.lender {
        seq_print!(seq, "fermata-lender:\t{lender}\n");
    }
}

/// Prints the state and the counters of the context's jobs.
fn show_job(seq: &SeqFile, stats: &Stats) {
    seq_print!(seq, "fermata-state:\t{}\n", state_name(stats.state));
    if let Some(slot) = stats.slot {
        seq_print!(seq, "fermata-slot:\t{}\n", slot.index());
    }
    if let Some(idle) = stats.idle() {
        seq_print!(seq, "fermata-idle:\t{} ns\n", idle.as_ns());
    }
    seq_print!(seq, "fermata-job:\t{}\n", stats.job);
    seq_print!(seq, "fermata-wait:\t{} ns\n", stats.wait.as_ns());
    seq_print!(seq, "fermata-slices:\t{}\n", stats.slices);
    seq_print!(seq, "fermata-preemptions:\t{}\n", stats.preemptions);
    seq_print!(seq, "fermata-finished:\t{}\n", stats.finished);
    seq_print!(seq, "fermata-failed:\t{}\n", stats.failed);
}

/// Returns the name of a state, as in `FERMATA_STATE_*`.
pub(crate) fn state_name(state: JobState) -> &'static str {
    match state {
        JobState::Idle => "idle",
        JobState::Queued => "queued",
        JobState::Running => "running",
        JobState::Held => "held",
        JobState::Empty => "empty",
        JobState::Done => "done",
        JobState::Failed(_) => "failed",
    }
}
