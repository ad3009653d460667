// SPDX-License-Identifier: GPL-2.0-or-later
//! SVG pictures with exact coordinates: shapes and colours ([`svg`]); line charts, their axes and
//! their legends ([`chart`]).

pub mod chart;
pub mod svg;
