// SPDX-License-Identifier: GPL-2.0-or-later
//! SVG pictures with exact coordinates: shapes ([`svg`]), colours ([`color`]), axes ([`axis`]),
//! legends ([`legend`]) and line charts ([`chart`]).

pub mod axis;
pub mod chart;
pub mod color;
pub mod legend;
pub mod svg;
