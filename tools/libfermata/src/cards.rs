// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the cards of the machine, also by engine.

use crate::{Context, EngineId, Error, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Returns the device nodes of the cards in `/dev`, in the order of their numbers.
pub fn devices() -> Result<Vec<PathBuf>> {
    let found = devices_in(Path::new("/dev"))?;
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Returns the numbers of the cards in `/dev`, in ascending order.
pub fn card_numbers() -> Result<Vec<u32>> {
    let found = devices_in(Path::new("/dev"))?;
    Ok(found.into_iter().map(|(number, _)| number).collect())
}

fn devices_in(folder: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let entries = std::fs::read_dir(folder).map_err(|error| Error::from_io(&error))?;
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            card_number(path.file_name()?).map(|number| (number, path))
        })
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Returns the number of the card whose node, and directory in `/sys/class/fermata`, has this name.
pub fn card_number(name: &OsStr) -> Option<u32> {
    let digits = name.to_str()?.strip_prefix("fermata")?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

impl Context {
    /// Opens the first card, by number, that has the engine and accepts the context, and chooses
    /// the engine on it.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]: no card has the engine. Any other error is the error of the first card
    /// that has the engine or could not be opened: [`Error::NotPermitted`], [`Error::NoSpace`], or
    /// another error of `FERMATA_IOC_SETUP`.
    pub fn open_engine(engine: EngineId) -> Result<Self> {
        let mut refusal = Error::NotFound;
        for device in devices()? {
            match Self::open(device).and_then(|card| card.setup(engine, 0).map(|_| card)) {
                // The card lacks the engine, or is gone.
                Err(Error::NotFound | Error::NotReady | Error::Gone) => {}
                Err(error) if refusal == Error::NotFound => refusal = error,
                Err(_) => {}
                done => return done,
            }
        }
        Err(refusal)
    }
}

/// Returns the major number of the module's devices: `Ok(None)` if the module is not loaded, an
/// error without /proc.
pub fn major() -> std::io::Result<Option<u32>> {
    std::fs::read_to_string("/proc/devices").map(|devices| major_in(&devices))
}

/// Returns the major number in the contents of /proc/devices, whose lines are a number and a name;
/// block devices come last.
pub fn major_in(devices: &str) -> Option<u32> {
    let characters = devices.lines().take_while(|line| *line != "Block devices:");
    let mut pairs = characters.filter_map(|line| line.trim().split_once(' '));
    let (number, _) = pairs.find(|(_, name)| *name == "fermata")?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_in_the_order_of_their_numbers() {
        let folder = std::env::temp_dir().join(format!("fermata-cards-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        for name in [
            "fermata10",
            "fermata2",
            "fermata",
            "fermata+3",
            "fermata4x",
            "null",
            "fermata99999999999",
        ] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let found = devices_in(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let wanted = [(2, "fermata2"), (10, "fermata10")].map(|(n, name)| (n, folder.join(name)));
        assert_eq!(found, Ok(wanted.to_vec()));
    }
}
