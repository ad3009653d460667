// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors in words, for bindings of other languages, whose callers see a number only.

use crate::{uapi, Error};

impl Error {
    /// Returns what usually helps, if the error alone tells that.
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

    /// Returns the error, and what usually helps.
    pub fn explained(self) -> String {
        match self.remedy() {
            Some(remedy) => format!("{self} ({remedy})"),
            None => self.to_string(),
        }
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
    fn remedies_stand_behind_causes() {
        assert_eq!(
            Error::NoAddress.explained(),
            "the arena has no device address (map the arena first)"
        );
        assert_eq!(Error::TimedOut.explained(), "the deadline came first");
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
