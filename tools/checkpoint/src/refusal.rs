// SPDX-License-Identifier: GPL-2.0
//! Why a checkpoint is not taken.

/// Why a checkpoint is not taken. Nothing runs then, and nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is something else.
    #[error("this is no checkpoint of fermata")]
    NotACheckpoint,
    /// Of another version of the format.
    #[error("the checkpoint is of version {0} of the format, this program reads version {version}", version = crate::container::VERSION)]
    Version(u32),
    /// It ends too early.
    #[error("the checkpoint is cut off: {0}")]
    Truncated(String),
    /// A checksum does not hold.
    #[error("the checkpoint is damaged: {0}")]
    Damaged(String),
    /// A section of an unknown kind.
    #[error("the checkpoint has a section of the unknown kind {0}")]
    Kind(u32),
    /// Something is larger than it may be.
    #[error("too large: {0}")]
    TooLarge(String),
    /// Sections that do not belong together, or there.
    #[error("the checkpoint does not make sense: {0}")]
    Inconsistent(String),
    /// Something follows it.
    #[error("something follows the end of the checkpoint")]
    Trailing,
    /// The card has no such engine.
    #[error("the card has no engine {0}")]
    Engine(String),
    /// The driver is older than the program that the checkpoint is of.
    #[error(
        "the checkpoint is of version {0} of the driver's interface, this driver has version {1}"
    )]
    Interface(u32, u32),
    /// The engine's state is of another size here.
    #[error("the engine's state has {0} bytes in the checkpoint, and {1} on this card: it is another version of the engine")]
    StateSize(u64, u64),
    /// It cannot be read.
    #[error("the checkpoint cannot be read: {0}")]
    Unreadable(#[source] std::io::Error),
    /// The driver refuses a step.
    #[error("{0}: {1}")]
    Driver(&'static str, #[source] fermata::Error),
}
