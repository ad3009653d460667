// SPDX-License-Identifier: GPL-2.0-or-later
//! The card that `fermata-vfio` serves on a host's card, in place of the emulated card: with
//! `FERMATA_VFIO=PROGRAM`, in a machine whose emulated card has the slots of the test, one test at a
//! time. Settings are those of the host's card, and the verdict is its checker's.

use crate::common::Options;
use fermata_card::client::Control;
use fermata_card::config::{IrqKind, Profile, Settings};
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PORT: &str = "/dev/virtio-ports/fermata.card0";

/// A daemon that serves a card.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// The program, if the tests are to run against it.
    pub fn program() -> Option<OsString> {
        std::env::var_os("FERMATA_VFIO")
    }

    /// Starts the program, for a card with these options.
    pub fn start(program: &OsString, options: &Options, socket: &Path) -> Self {
        let irq = options.profile == Profile::Base || options.irq == IrqKind::Msix;
        assert!(irq, "a guest's card has MSI-X, or is a base card");
        let names: Vec<_> = options.engines.iter().map(|kind| kind.name()).collect();
        let mut command = Command::new(program);
        command.args(["serve", "--profile", options.profile.name()]);
        command.args(["--slots", &names.join(",")]);
        command.arg("--socket").arg(socket).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let daemon = Self { child };
        daemon.set_up(options);
        daemon
    }

    /// Settings of the host's card: those of the test, else the defaults.
    fn set_up(&self, options: &Options) {
        self.ask_card("violations clear");
        for (slot, kind) in options.engines.iter().enumerate() {
            let Settings {
                speed,
                save_us,
                restore_us,
                ..
            } = Settings::default_for(*kind);
            self.ask_card(&format!(
                "set slot={slot} speed={speed} save_us={save_us} restore_us={restore_us}"
            ));
        }
        for set in &options.set {
            self.ask_card(&format!("set {}", set.replace(',', " ")));
        }
    }

    /// Sends a request to the host's card.
    pub fn ask_card(&self, request: &str) -> String {
        // The port can be open once, and a test may have two cards.
        Control::open(Path::new(PORT))
            .unwrap()
            .ask(request)
            .unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
