// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a call can say instead of working; the header tells what each means for which call.

/// An error of a call.
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
    /// Any other.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Other(i32),
}

/// What calls return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The error of this number.
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

    /// Its number. Of [`Error::NotPermitted`], which two numbers have, EPERM.
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
}
