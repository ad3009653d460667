// SPDX-License-Identifier: GPL-2.0

//! The configurations that are checked.

use crate::Bounds;

/// Two contexts take turns on a slot; nothing else happens.
const PLAIN: Bounds = Bounds {
    name: "",
    base: false,
    relay: false,
    slots: 1,
    contexts: 2,
    reset_before_resume: true,
    fair: false,
    boundary: false,
    urgent: false,
    first_urgent: false,
    queues: false,
    control: false,
    holds: false,
    imports: false,
    masks: false,
    access: false,
    groups: false,
    gangs: false,
    gang: false,
    calm: false,
    depth: None,
    hints: false,
    reopen: false,
    faults: false,
    reads: false,
    relay_faults: false,
    gone: false,
    freeze: false,
    cut: false,
};

/// The same on a slot with a relay.
const RELAY: Bounds = Bounds {
    relay: true,
    ..PLAIN
};

/// All on one slot.
const FULL: Bounds = Bounds {
    control: true,
    reopen: true,
    faults: true,
    gone: true,
    ..PLAIN
};

/// The configurations of `cargo test`: they take a few minutes together.
pub const QUICK: &[Bounds] = &[
    Bounds {
        name: "irq, 1 slot, 2 contexts, faults",
        faults: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, control, reopen, gone",
        faults: false,
        ..FULL
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, control, access",
        control: true,
        access: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, imports, faults, freeze",
        imports: true,
        faults: true,
        freeze: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, faults, freeze",
        faults: true,
        freeze: true,
        ..PLAIN
    },
    Bounds {
        name: "base, 1 slot, 2 contexts, imports, control, freeze",
        base: true,
        imports: true,
        control: true,
        freeze: true,
        ..PLAIN
    },
    Bounds {
        name: "base, 1 slot, 2 contexts, control, freeze",
        base: true,
        control: true,
        freeze: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, groups, reopen",
        groups: true,
        reopen: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 2 slots, 3 contexts, gang, calm",
        slots: 2,
        contexts: 3,
        gang: true,
        calm: true,
        depth: Some(13),
        ..PLAIN
    },
    Bounds {
        name: "irq, 2 slots, 2 contexts, control, gangs, calm",
        slots: 2,
        control: true,
        gang: true,
        gangs: true,
        calm: true,
        depth: Some(9),
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, hints",
        hints: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, queues, control",
        queues: true,
        control: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, queues, control, holds",
        queues: true,
        control: true,
        holds: true,
        depth: Some(12),
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, queues, faults",
        queues: true,
        faults: true,
        ..PLAIN
    },
    Bounds {
        name: "base, 1 slot, 2 contexts, faults",
        base: true,
        faults: true,
        ..PLAIN
    },
    Bounds {
        name: "base, 1 slot, 2 contexts, control, reopen, gone",
        base: true,
        faults: false,
        ..FULL
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, boundaries, control",
        boundary: true,
        control: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, boundaries, urgent, control",
        boundary: true,
        urgent: true,
        control: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, boundaries, urgent, freeze",
        boundary: true,
        urgent: true,
        freeze: true,
        ..PLAIN
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts",
        ..RELAY
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, cut off",
        cut: true,
        ..PLAIN
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, cut off",
        cut: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, faults, calm",
        faults: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, relay faults",
        relay_faults: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, reads",
        reads: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, reopen",
        reopen: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, gone",
        gone: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, access",
        access: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, imports, freeze",
        imports: true,
        freeze: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, groups",
        groups: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, hints",
        hints: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, queues",
        queues: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, boundaries, urgent",
        boundary: true,
        urgent: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 3 contexts, calm, first urgent",
        contexts: 3,
        first_urgent: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, control",
        control: true,
        calm: true,
        depth: Some(14),
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, control, holds",
        control: true,
        holds: true,
        calm: true,
        depth: Some(11),
        ..RELAY
    },
    Bounds {
        name: "relay, 2 slots, 3 contexts, calm",
        slots: 2,
        contexts: 3,
        calm: true,
        depth: Some(11),
        ..RELAY
    },
    Bounds {
        name: "relay, 2 slots, 3 contexts, calm, gang",
        slots: 2,
        contexts: 3,
        gang: true,
        calm: true,
        depth: Some(13),
        ..RELAY
    },
];

/// The additional configurations of `fermata-check --large`.
pub const LARGE: &[Bounds] = &[
    Bounds {
        name: "irq, 2 slots, 2 contexts, control, gangs",
        slots: 2,
        control: true,
        gangs: true,
        depth: Some(10),
        ..PLAIN
    },
    Bounds {
        name: "irq, 2 slots, 3 contexts, gang",
        slots: 2,
        contexts: 3,
        gang: true,
        depth: Some(15),
        ..PLAIN
    },
    Bounds {
        name: "irq, 2 slots, 3 contexts",
        slots: 2,
        contexts: 3,
        depth: Some(17),
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, all",
        depth: Some(13),
        ..FULL
    },
    Bounds {
        name: "base, 1 slot, 2 contexts, all",
        base: true,
        depth: Some(17),
        ..FULL
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, fair, control",
        fair: true,
        control: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, boundaries, faults",
        boundary: true,
        faults: true,
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 3 contexts, control",
        contexts: 3,
        control: true,
        depth: Some(19),
        ..PLAIN
    },
    Bounds {
        name: "irq, 2 slots, 2 contexts, control, masks",
        slots: 2,
        control: true,
        masks: true,
        depth: Some(10),
        ..PLAIN
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, hints, control, access, reopen, gone",
        hints: true,
        control: true,
        access: true,
        reopen: true,
        gone: true,
        depth: Some(11),
        ..PLAIN
    },
    Bounds {
        name: "irq, 2 slots, 3 contexts, hints",
        slots: 2,
        contexts: 3,
        hints: true,
        depth: Some(13),
        ..PLAIN
    },
    Bounds {
        name: "base, 2 slots, 3 contexts",
        base: true,
        slots: 2,
        contexts: 3,
        depth: Some(18),
        ..PLAIN
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, reopen, gone",
        reopen: true,
        gone: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, control",
        control: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, faults",
        faults: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, relay faults",
        relay_faults: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, relay faults, freeze",
        relay_faults: true,
        freeze: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, faults, freeze",
        faults: true,
        freeze: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, access",
        access: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, queues, control",
        queues: true,
        control: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 3 contexts, first urgent",
        contexts: 3,
        first_urgent: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 3 contexts, first urgent, control",
        contexts: 3,
        first_urgent: true,
        control: true,
        depth: Some(10),
        ..RELAY
    },
    Bounds {
        name: "irq, 1 slot, 2 contexts, control, cut off",
        control: true,
        cut: true,
        ..PLAIN
    },
    Bounds {
        name: "base, 1 slot, 2 contexts, faults, cut off",
        base: true,
        faults: true,
        cut: true,
        ..PLAIN
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, faults, calm, cut off",
        faults: true,
        calm: true,
        cut: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, first urgent, control",
        first_urgent: true,
        control: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, first urgent, faults",
        first_urgent: true,
        faults: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, first urgent, relay faults",
        first_urgent: true,
        relay_faults: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, first urgent, freeze, cut off",
        first_urgent: true,
        freeze: true,
        cut: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, first urgent, access",
        first_urgent: true,
        access: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, boundaries, urgent, control",
        boundary: true,
        urgent: true,
        control: true,
        calm: true,
        depth: Some(14),
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, boundaries, urgent, faults",
        boundary: true,
        urgent: true,
        faults: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 1 slot, 2 contexts, calm, queues, relay faults",
        queues: true,
        relay_faults: true,
        calm: true,
        ..RELAY
    },
    Bounds {
        name: "relay, 2 slots, 3 contexts",
        slots: 2,
        contexts: 3,
        depth: Some(13),
        ..RELAY
    },
    Bounds {
        name: "relay, 2 slots, 2 contexts, control, masks",
        slots: 2,
        control: true,
        masks: true,
        depth: Some(10),
        ..RELAY
    },
];
