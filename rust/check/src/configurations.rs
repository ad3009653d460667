// SPDX-License-Identifier: GPL-2.0

//! The configurations that are checked.

use crate::Bounds;

/// Two contexts take turns on a slot; nothing else happens.
const PLAIN: Bounds = Bounds {
    name: "",
    base: false,
    slots: 1,
    contexts: 2,
    reset_before_resume: true,
    fair: false,
    boundary: false,
    urgent: false,
    queues: false,
    control: false,
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
    gone: false,
    freeze: false,
};

/// All on one slot.
const FULL: Bounds = Bounds {
    control: true,
    reopen: true,
    faults: true,
    gone: true,
    ..PLAIN
};

/// Those of `cargo test`: a few minutes together.
pub const QUICK: &[Bounds] = &[
    Bounds {
        name: "fermata, 1 slot, 2 contexts, faults",
        faults: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, control, reopen, gone",
        faults: false,
        ..FULL
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, control, access",
        control: true,
        access: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, imports, faults, freeze",
        imports: true,
        faults: true,
        freeze: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, faults, freeze",
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
        name: "fermata, 1 slot, 2 contexts, groups, reopen",
        groups: true,
        reopen: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 2 slots, 3 contexts, gang, calm",
        slots: 2,
        contexts: 3,
        gang: true,
        calm: true,
        depth: Some(13),
        ..PLAIN
    },
    Bounds {
        name: "fermata, 2 slots, 2 contexts, control, gangs, calm",
        slots: 2,
        control: true,
        gang: true,
        gangs: true,
        calm: true,
        depth: Some(9),
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, hints",
        hints: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, queues, control",
        queues: true,
        control: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, queues, faults",
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
        name: "fermata, 1 slot, 2 contexts, boundaries, control",
        boundary: true,
        control: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, boundaries, urgent, control",
        boundary: true,
        urgent: true,
        control: true,
        ..PLAIN
    },
];

/// Those of `fermata-check --large` besides.
pub const LARGE: &[Bounds] = &[
    Bounds {
        name: "fermata, 2 slots, 2 contexts, control, gangs",
        slots: 2,
        control: true,
        gangs: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 2 slots, 3 contexts, gang",
        slots: 2,
        contexts: 3,
        gang: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 2 slots, 3 contexts",
        slots: 2,
        contexts: 3,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, all",
        ..FULL
    },
    Bounds {
        name: "base, 1 slot, 2 contexts, all",
        base: true,
        ..FULL
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, fair, control",
        fair: true,
        control: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, boundaries, faults",
        boundary: true,
        faults: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 3 contexts, control",
        contexts: 3,
        control: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 2 slots, 2 contexts, control, masks",
        slots: 2,
        control: true,
        masks: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 1 slot, 2 contexts, hints, control, access, reopen, gone",
        hints: true,
        control: true,
        access: true,
        reopen: true,
        gone: true,
        ..PLAIN
    },
    Bounds {
        name: "fermata, 2 slots, 3 contexts, hints",
        slots: 2,
        contexts: 3,
        hints: true,
        ..PLAIN
    },
    Bounds {
        name: "base, 2 slots, 3 contexts",
        base: true,
        slots: 2,
        contexts: 3,
        ..PLAIN
    },
];
