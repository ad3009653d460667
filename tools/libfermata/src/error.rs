// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of calls. The header tells what each means for each call. The texts are for bindings of
//! other languages, whose callers only see a number.

use crate::{uapi, Context};

/// An error returned by a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// ENODEV
    #[error("the card is gone")]
    Gone,
    /// ENXIO
    #[error("something that has to come first is missing")]
    NotReady,
    /// EEXIST
    #[error("it is there already")]
    Exists,
    /// ENOENT
    #[error("there is no such thing")]
    NotFound,
    /// EBUSY
    #[error("busy")]
    Busy,
    /// EAGAIN
    #[error("not now")]
    Again,
    /// ETIMEDOUT
    #[error("the deadline came first")]
    TimedOut,
    /// EINTR
    #[error("interrupted by a signal")]
    Interrupted,
    /// EINVAL
    #[error("invalid argument")]
    Invalid,
    /// ERANGE
    #[error("value out of range")]
    OutOfRange,
    /// EPERM, EACCES
    #[error("not permitted")]
    NotPermitted,
    /// ENOSPC
    #[error("no more contexts on this card")]
    NoSpace,
    /// ENOMEM
    #[error("out of memory")]
    NoMemory,
    /// ENODATA
    #[error("no state: the job has never run")]
    NoState,
    /// ESRCH
    #[error("no context has this number")]
    NoContext,
    /// EDESTADDRREQ
    #[error("the arena has no device address")]
    NoAddress,
    /// EPROTO
    #[error("the card broke its protocol")]
    Protocol,
    /// Any other number.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Other(i32),
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns the error with this number.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENODEV => Self::Gone,
            libc::ENXIO => Self::NotReady,
            libc::EEXIST => Self::Exists,
            libc::ENOENT => Self::NotFound,
            libc::EBUSY => Self::Busy,
            libc::EAGAIN => Self::Again,
            libc::ETIMEDOUT => Self::TimedOut,
            libc::EINTR => Self::Interrupted,
            libc::EINVAL => Self::Invalid,
            libc::ERANGE => Self::OutOfRange,
            libc::EPERM | libc::EACCES => Self::NotPermitted,
            libc::ENOSPC => Self::NoSpace,
            libc::ENOMEM => Self::NoMemory,
            libc::ENODATA => Self::NoState,
            libc::ESRCH => Self::NoContext,
            libc::EDESTADDRREQ => Self::NoAddress,
            libc::EPROTO => Self::Protocol,
            other => Self::Other(other),
        }
    }

    /// Returns the number. [`Error::NotPermitted`], which has two numbers, gives EPERM.
    pub fn errno(self) -> i32 {
        match self {
            Self::Gone => libc::ENODEV,
            Self::NotReady => libc::ENXIO,
            Self::Exists => libc::EEXIST,
            Self::NotFound => libc::ENOENT,
            Self::Busy => libc::EBUSY,
            Self::Again => libc::EAGAIN,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::Interrupted => libc::EINTR,
            Self::Invalid => libc::EINVAL,
            Self::OutOfRange => libc::ERANGE,
            Self::NotPermitted => libc::EPERM,
            Self::NoSpace => libc::ENOSPC,
            Self::NoMemory => libc::ENOMEM,
            Self::NoState => libc::ENODATA,
            Self::NoContext => libc::ESRCH,
            Self::NoAddress => libc::EDESTADDRREQ,
            Self::Protocol => libc::EPROTO,
            Self::Other(errno) => errno,
        }
    }

    pub(crate) fn from_io(error: &std::io::Error) -> Self {
        Self::from_errno(error.raw_os_error().unwrap_or(libc::EIO))
    }

    pub(crate) fn last() -> Self {
        Self::from_io(&std::io::Error::last_os_error())
    }
}

impl Error {
    /// Returns what usually helps, if the error alone determines that.
    pub fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Gone => "close the context, and open one on another card",
            Self::NotReady => {
                "choose the engine, make and map the arena and make the snapshot buffer first"
            }
            Self::Exists => "a context has one engine, one arena and one snapshot buffer: open another context",
            Self::NotFound => "look which cards, engines and jobs there are: `fermatactl info` and `fermatactl list` show them",
            Self::Busy => "wait for the end of the job, or until the job is held, to read its state; of a reservation, ask for less time",
            Self::NotPermitted => {
                "be a member of the group fermata to open a card (adduser NAME fermata); docs/security.md tells what else takes a capability"
            }
            Self::NoSpace => "close contexts, or wait until other programs close theirs",
            Self::NoMemory => {
                "raise RLIMIT_MEMLOCK (ulimit -l) or the limits of the memory cgroup or of the group, or make the arena smaller"
            }
            Self::NoAddress => "map the arena first",
            Self::Protocol => "`dmesg` says how; reset the card (docs/operations.md)",
            Self::Other(libc::ENOTTY) => "give the descriptor of an open /dev/fermata*",
            Self::Other(libc::EDQUOT) => "close contexts of the group, or have its limit raised (`fermatactl group`)",
            _ => return None,
        })
    }

    /// Returns the text of the error, and what usually helps.
    pub fn explained(self) -> String {
        match self.remedy() {
            Some(remedy) => format!("{self} ({remedy})"),
            None => self.to_string(),
        }
    }
}

impl Context {
    /// Returns the text of an error of a call of this context, and what usually helps. If something
    /// has to come first, the text names it.
    pub fn explain(&self, error: Error) -> String {
        let status = match error {
            Error::NotReady | Error::NoAddress => self.status().ok(),
            _ => None,
        };
        let missing = status.and_then(|status| missing(error, &status));
        missing.map_or_else(|| error.explained(), Into::into)
    }
}

/// Returns what a context in this state lacks for a call that fails with `error`.
fn missing(error: Error, status: &uapi::Status) -> Option<&'static str> {
    match error {
        Error::NotReady if status.state == uapi::STATE_NEW => {
            Some("no engine is chosen (choose the engine first)")
        }
        Error::NotReady if status.snapshot_length == 0 => {
            Some("the context has no snapshot buffer (create the snapshot buffer first)")
        }
        Error::NoAddress if status.arena_length == 0 => {
            Some("the context has no arena (create the arena and map it first)")
        }
        _ => None,
    }
}

impl uapi::Status {
    /// Returns why the last job failed; `None`: the last job did not fail.
    pub fn failure(&self) -> Option<String> {
        if self.state != uapi::STATE_FAILED {
            return None;
        }
        Some(match self.error as i32 {
            libc::EFAULT => {
                let access = if self.fault_flags & uapi::FAULT_WRITE == 0 {
                    "read"
                } else {
                    "wrote"
                };
                format!(
                    "the engine {access} at {:#x}, outside of the arena (correct the registers or the data of the job)",
                    self.fault_addr
                )
            }
            libc::ETIME => "the engine did not pause within the preempt timeout, and the slot was reset (raise FERMATA_PARAM_PREEMPT_TIMEOUT)".into(),
            libc::EIO => "the state of the job could not be saved or restored (start the job again; FERMATA_START_REPLAYABLE does so by itself)".into(),
            error => Error::from_errno(error).explained(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_numbers() {
        for errno in (1..134).filter(|errno| *errno != libc::EACCES) {
            assert_eq!(Error::from_errno(errno).errno(), errno);
        }
        assert_eq!(Error::from_errno(libc::EACCES).errno(), libc::EPERM);
    }

    #[test]
    fn remedies_stand_behind_causes() {
        assert_eq!(
            Error::NoAddress.explained(),
            "the arena has no device address (map the arena first)"
        );
        assert_eq!(Error::TimedOut.explained(), "the deadline came first");
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut status = uapi::Status::default();
        let names = |error, status: &uapi::Status, what: &str| {
            missing(error, status).is_some_and(|text| text.contains(what))
        };
        assert!(names(Error::NotReady, &status, "no engine"));
        status.state = uapi::STATE_IDLE;
        assert!(names(Error::NotReady, &status, "no snapshot buffer"));
        assert!(names(Error::NoAddress, &status, "no arena"));
        (status.snapshot_length, status.arena_length) = (1, 1);
        assert_eq!(missing(Error::NotReady, &status), None);
        assert_eq!(missing(Error::NoAddress, &status), None);
    }

    #[test]
    fn failed_jobs_have_a_reason() {
        let done = uapi::Status {
            state: uapi::STATE_DONE,
            ..Default::default()
        };
        assert_eq!(done.failure(), None);
        let failed = uapi::Status {
            state: uapi::STATE_FAILED,
            error: libc::EFAULT as u32,
            fault_addr: 0x1000,
            fault_flags: uapi::FAULT_WRITE,
            ..Default::default()
        };
        let text = failed.failure().unwrap();
        assert!(text.starts_with("the engine wrote at 0x1000,"), "{text}");
    }
}
