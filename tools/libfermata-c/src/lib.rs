// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfermata for programs in C and other languages: `include/libfermata.h` is generated from these
//! functions, and `libfermata.map` has the versions of their symbols.
//!
//! Contract of all functions, which the header states for programs: each pointer is valid for what
//! the function's description says, or NULL, which is refused.

// The header states the contract once, instead of each function. Descriptions of functions are
// comments in C.
#![allow(clippy::missing_safety_doc, clippy::doc_markdown)]

// The order of these lines is the order of the functions in the header.
mod context;

mod jobs;

pub use context::*;
pub use jobs::*;

use fermata::Error;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Why a function fails.
enum Failure {
    /// The driver refused a call: the object, the error, cause and remedy.
    Call(String, Error, String),
    /// The job failed: the object, the errno, the reason.
    Job(String, c_int, String),
    /// The function refuses an argument.
    Argument(String),
    /// A queue is full, or has no complete job. Programs call again and again, so the message is
    /// ready-made.
    Again(&'static CStr),
}

/// The result of the body of a function.
type Outcome = Result<(), Failure>;

impl Failure {
    fn of_call(object: String, error: Error) -> Self {
        Self::Call(object, error, error.explained())
    }

    fn errno(&self) -> c_int {
        match self {
            Self::Call(_, error, _) => error.errno(),
            Self::Job(_, errno, _) => *errno,
            Self::Argument(_) => libc::EINVAL,
            Self::Again(_) => libc::EAGAIN,
        }
    }

    fn message(&self, what: &str) -> Cow<'static, CStr> {
        owned(&match self {
            Self::Call(object, _, why) | Self::Job(object, _, why) => {
                format!("{object}: {what}: {why}")
            }
            Self::Argument(why) => format!("{what}: {why}"),
            Self::Again(why) => return Cow::Borrowed(why),
        })
    }
}

thread_local! {
    static MESSAGE: RefCell<Cow<'static, CStr>> = const { RefCell::new(Cow::Borrowed(c"")) };
}

fn owned(text: &str) -> Cow<'static, CStr> {
    CString::new(text.replace('\0', "?"))
        .unwrap_or_default()
        .into()
}

fn set_message(text: Cow<'static, CStr>) {
    // While the thread ends, its message is gone, and none is stored.
    let _ = MESSAGE.try_with(|message| message.replace(text));
}

/// Runs the body of a function whose purpose is `what`. A panic, which is a bug in the library,
/// does not unwind into the program: the function returns -ENOTRECOVERABLE.
fn run(what: &str, body: impl FnOnce() -> Outcome) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => {
            set_message(failure.message(what));
            -failure.errno()
        }
        Err(_) => {
            set_message(owned(&format!(
                "{what}: internal error of libfermata; the error output has a report"
            )));
            -libc::ENOTRECOVERABLE
        }
    }
}

/// Returns why the last failed function call of this thread failed: object, cause and remedy. The
/// text is valid until another function fails in this thread, or the thread ends. It is empty if no
/// function has failed.
#[no_mangle]
pub extern "C" fn fermata_message() -> *const c_char {
    let message = MESSAGE.try_with(|message| message.borrow().as_ptr());
    message.unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: a string of this thread, which is copied at once.
        unsafe { CStr::from_ptr(fermata_message()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn panics_end_in_an_error() {
        assert_eq!(message(), "");
        assert_eq!(run("test", || Ok(())), 0);
        assert_eq!(run("test", || panic!("on purpose")), -libc::ENOTRECOVERABLE);
        assert!(message().starts_with("test: internal error of libfermata"));
    }

    #[test]
    fn messages_have_no_end_inside() {
        let failure = || Err(Failure::Argument("a\0b".into()));
        assert_eq!(run("test", failure), -libc::EINVAL);
        assert_eq!(message(), "test: a?b");
    }
}
