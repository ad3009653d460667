// SPDX-License-Identifier: GPL-2.0-or-later
//! The options of a guest, which stand on the command line or in a file.

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use fermata::Param;
use fermata_card::config::Profile;
use fermata_card::engine::EngineKind;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The arguments of `fermata-vfio serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// TOML file with options, named as here without dashes; options of the command line go first
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

/// The options, each of which may stand in the file.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Options {
    /// UNIX socket for the virtual machine monitor (vfio-user); one machine at a time
    #[arg(long)]
    socket: Option<PathBuf>,
    /// UNIX socket for the commands save, load and continue [default: none]
    #[arg(long)]
    pub(crate) control: Option<PathBuf>,
    /// The host's card [default: /dev/fermata0]
    #[arg(long)]
    device: Option<PathBuf>,
    /// The profile of the guest's card [default: fermata]
    #[arg(long, value_enum)]
    profile: Option<GuestProfile>,
    /// The engine of each slot of the guest's card [default: as the host's card has them]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) slots: Vec<EngineKind>,
    /// Weight of each of the guest's contexts, 1 to 10000
    #[arg(long)]
    weight: Option<u64>,
    /// Priority of the guest's contexts, 0 to 31
    #[arg(long)]
    priority: Option<u64>,
    /// Limit of each of the guest's contexts, in percent of a slot
    #[arg(long)]
    cap: Option<u64>,
    /// Let the guest's jobs go before those of others, at once
    #[arg(long)]
    latency_critical: bool,
    /// Pin all of the guest's memory that has no hole around a window, when the first job uses the
    /// window, so that no memory is charged twice, whatever windows the guest has
    #[arg(long)]
    pub(crate) pin_memory: bool,
}

/// The profiles that a guest's card can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum GuestProfile {
    /// With interrupts and window check
    Fermata,
    /// The fermata profile with orders
    Relay,
    /// Without interrupts, window check and orders
    Base,
}

impl Serve {
    /// Returns the options of the command line, and those that only the file has.
    pub(crate) fn options(self) -> Result<Options> {
        let file = match &self.config {
            Some(path) => read(path).with_context(|| path.display().to_string())?,
            None => Options::default(),
        };
        Ok(self.options.or(file))
    }
}

fn read(path: &Path) -> Result<Options> {
    Ok(toml::from_str(&std::fs::read_to_string(path)?)?)
}

impl Options {
    /// Returns these options, and from `others` those that are not given here.
    fn or(self, others: Self) -> Self {
        Self {
            socket: self.socket.or(others.socket),
            control: self.control.or(others.control),
            device: self.device.or(others.device),
            profile: self.profile.or(others.profile),
            slots: if self.slots.is_empty() {
                others.slots
            } else {
                self.slots
            },
            weight: self.weight.or(others.weight),
            priority: self.priority.or(others.priority),
            cap: self.cap.or(others.cap),
            latency_critical: self.latency_critical || others.latency_critical,
            pin_memory: self.pin_memory || others.pin_memory,
        }
    }

    pub(crate) fn socket(&self) -> Result<&Path> {
        let socket = self.socket.as_deref();
        socket.context("no socket is given: --socket, or socket in the file of --config")
    }

    pub(crate) fn device(&self) -> PathBuf {
        let device = self.device.clone();
        device.unwrap_or_else(|| PathBuf::from("/dev/fermata0"))
    }

    pub(crate) fn profile(&self) -> Profile {
        match self.profile {
            Some(GuestProfile::Relay) => Profile::Relay,
            Some(GuestProfile::Base) => Profile::Base,
            Some(GuestProfile::Fermata) | None => Profile::Fermata,
        }
    }

    /// Returns the parameters of contexts that are given.
    pub(crate) fn params(&self) -> Vec<(Param, u64)> {
        let latency_critical = self.latency_critical.then_some(1);
        let params = [
            (Param::Weight, self.weight),
            (Param::Priority, self.priority),
            (Param::Cap, self.cap),
            (Param::LatencyCritical, latency_critical),
        ];
        let given = params.into_iter();
        given.filter_map(|(p, value)| Some((p, value?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file that is installed as an example.
    const EXAMPLE: &str = include_str!("../guest.toml");

    #[test]
    fn the_command_line_goes_before_the_file() {
        let file: Options = toml::from_str(
            "socket = \"/run/a\"\nslots = [\"sha256\", \"membench\"]\nweight = 200\n\
             latency-critical = true\nprofile = \"relay\"",
        )
        .unwrap();
        let line = Options {
            socket: Some("/run/b".into()),
            weight: Some(50),
            ..Options::default()
        };
        let both = line.or(file);
        assert_eq!(both.socket().unwrap(), Path::new("/run/b"));
        assert_eq!(both.slots, [EngineKind::Sha256, EngineKind::Membench]);
        assert_eq!(both.profile(), Profile::Relay);
        assert_eq!(both.device(), Path::new("/dev/fermata0"));
        let params = [(Param::Weight, 50), (Param::LatencyCritical, 1)];
        assert_eq!(both.params(), params);
    }

    #[test]
    fn what_the_file_must_not_hold_is_named() {
        let wrong = |text| toml::from_str::<Options>(text).unwrap_err().to_string();
        assert!(wrong("wieght = 3").contains("unknown field `wieght`"));
        assert!(wrong("profile = \"optimus\"").contains("unknown variant `optimus`"));
        assert!(Options::default().socket().is_err());
    }

    #[test]
    fn the_example_has_each_option() {
        let options: Options = toml::from_str(EXAMPLE).unwrap();
        assert_eq!(options, Options::default(), "all are commented out");
        let set = EXAMPLE.replace("#= ", "");
        let options: Options = toml::from_str(&set).unwrap();
        let defaults = Options::default();
        assert!(options.socket.is_some() && options.control.is_some());
        assert!(options.device.is_some() && options.profile.is_some());
        assert_ne!(options.slots, defaults.slots);
        assert_eq!(options.params().len(), 4);
        assert!(options.pin_memory);
    }
}
