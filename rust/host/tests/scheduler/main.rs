// SPDX-License-Identifier: GPL-2.0

//! The scheduler and its measurements, in virtual time against the model of a card. All tests are
//! one program, so that the model is compiled once.

mod attacks;
mod card;
mod cooperative;
mod gains;
mod gang_programs;
mod gangs;
mod groups;
mod hints;
mod limits;
mod loading;
mod measure;
mod measured;
mod mistakes;
mod model;
mod owners;
mod points;
mod policies;
mod queues;
mod random;
mod registered;
mod relay;
mod rules;
mod simulation;
mod urgency;
mod watch;
mod weights;
