// SPDX-License-Identifier: GPL-2.0-or-later
//! SVG pictures with exact coordinates: shapes and colours ([`svg`]), line charts and their axes
//! ([`chart`]), legends ([`legend`]).

pub mod chart;
pub mod legend;
pub mod svg;
