// SPDX-License-Identifier: GPL-2.0-or-later
//! Serves one virtual machine after the other at a socket. The options of a guest are on the
//! command line or in a file.

use crate::context::{Lenders, Settings};
use crate::control::Control;
use crate::slot::HostSlot;
use crate::tell;
use anyhow::{bail, ensure, Context as _, Result};
use clap::{Args, ValueEnum};
use fermata::{Context, EngineId, Param};
use fermata_card::card::Card;
use fermata_card::config::{CardConfig, IrqKind, Profile, Settings as SlotSettings};
use fermata_card::engine::{EngineKind, EngineMaker};
use fermata_card::log::Recorder;
use fermata_card::vfio::{remove_socket, Server};
use fermata_output::{complain, say};
use rustix::fs::Mode;
use serde::Deserialize;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Who may connect to the socket of the device: the daemon's user, and its group, which is the
/// monitor's.
const GROUP: Mode = Mode::from_raw_mode(0o660);
/// Who may connect to the control socket: the daemon's user only, because a monitor of another
/// machine may be of the same group.
const OWNER: Mode = Mode::from_raw_mode(0o600);

/// Serves until a signal comes.
pub(crate) fn serve(args: Serve) -> Result<()> {
    let options = args.options()?;
    let socket = options.socket()?;
    let settings = Arc::new(Settings {
        device: options.device(),
        params: options.params(),
        lenders: Lenders::new(options.pin_memory),
    });
    let config = configure(&options, &settings)?;
    let maker = |kind| HostSlot::new(settings.clone(), kind).map(|s| Arc::new(s) as Arc<_>);
    let makers = config.slots.iter().map(|slot| maker(slot.engine));
    let makers = makers.collect::<std::io::Result<Vec<Arc<dyn EngineMaker>>>>()?;
    let card = Card::with_makers(config, makers, Recorder::none());
    let server = Arc::new(Server::new(card.clone(), listen(socket, GROUP)?));
    server.stop_on_signals()?;
    let control = options.control.as_deref();
    if let Some(path) = control {
        Control::new(card.clone(), server.clone()).serve(listen(path, OWNER)?);
    }
    say!("ready");
    sd_notify::notify(false, &[sd_notify::NotifyState::Ready]).context("NOTIFY_SOCKET")?;
    let end = server.run(|error| tell(format_args!("the virtual machine is lost: {error}")));
    card.stop();
    for path in control.into_iter().chain([socket]) {
        let _ = remove_socket(path);
    }
    end.context("vfio-user socket")
}

/// Returns the configuration of the guest's card: engines that the host's card has, with snapshots
/// of the same size.
fn configure(options: &Options, settings: &Settings) -> Result<CardConfig> {
    let device = &settings.device;
    let host = Context::open(device).with_context(|| device.display().to_string())?;
    let found = host_engines(&host)?;
    let kinds: Vec<_> = if options.slots.is_empty() {
        let known = found.iter().map(|(kind, _)| *kind);
        known.filter(|kind| !kind.has_queue()).collect()
    } else {
        options.slots.clone()
    };
    ensure!(
        !kinds.is_empty(),
        "the host's card has no engine for a guest"
    );
    let mut config =
        CardConfig::new(options.profile(), IrqKind::Msix, &kinds).map_err(anyhow::Error::msg)?;
    for slot in &mut config.slots {
        let name = slot.engine.name();
        if slot.engine.has_queue() {
            bail!("{name}: engines that read a queue cannot be given to a guest");
        }
        let same = found.iter().filter(|(kind, _)| *kind == slot.engine);
        let Some(state_pages) = same.map(|(_, pages)| *pages).max() else {
            bail!("{name}: the host's card has no such engine");
        };
        let (high, low) = slot.engine.afu_id();
        let tried = settings.open(EngineId { low, high });
        drop(tried.with_context(|| format!("a context for {name} on {}", device.display()))?);
        slot.settings = SlotSettings {
            speed: 0,
            drain_us: 0,
            settle_us: 0,
            state_pages,
            ..SlotSettings::default_for(slot.engine)
        };
    }
    Ok(config)
}

/// Returns the engines of the host's slots that a guest's card can show, and the pages of their
/// snapshots.
fn host_engines(host: &Context) -> Result<Vec<(EngineKind, u64)>> {
    let mut found = Vec::new();
    for slot in 0..host.card_info()?.slots {
        let info = host.slot_info(slot)?;
        let id = (info.afu_id_hi, info.afu_id_lo);
        let known = EngineKind::value_variants().iter();
        let known = known.filter(|kind| kind.afu_id() == id);
        found.extend(known.map(|kind| (*kind, info.state_pages.into())));
    }
    Ok(found)
}

/// Listens on a socket, to which only the users of `mode` may connect. A socket without a listener
/// is replaced.
fn listen(path: &Path, mode: Mode) -> Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        bail!("{}: another daemon serves it", path.display());
    }
    remove_socket(path).with_context(|| path.display().to_string())?;
    fermata_checkpoint::listen(path, mode).with_context(|| path.display().to_string())
}

/// The arguments of `fermata-vfio serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// TOML file with options, named as here without dashes; options of the command line take
    /// precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

/// The options, each of which may be in the file.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Options {
    /// UNIX socket for the virtual machine monitor (vfio-user); one machine at a time
    #[arg(long)]
    socket: Option<PathBuf>,
    /// UNIX socket for the commands save, load and continue [default: none]
    #[arg(long)]
    control: Option<PathBuf>,
    /// The host's card [default: /dev/fermata0]
    #[arg(long)]
    device: Option<PathBuf>,
    /// The profile of the guest's card [default: irq]
    #[arg(long, value_enum)]
    profile: Option<GuestProfile>,
    /// The engine of each slot of the guest's card [default: as the host's card has them]
    #[arg(long, value_enum, value_delimiter = ',')]
    slots: Vec<EngineKind>,
    /// Weight of each of the guest's contexts, 1 to 10000
    #[arg(long)]
    weight: Option<u64>,
    /// Priority of the guest's contexts, 0 to 31
    #[arg(long)]
    priority: Option<u64>,
    /// Limit of each of the guest's contexts, in percent of a slot
    #[arg(long)]
    cap: Option<u64>,
    /// Let the guest's jobs preempt best-effort jobs at once
    #[arg(long)]
    latency_critical: bool,
    /// Pin all contiguous guest memory around a window when the first job uses the window, so that
    /// no memory is charged twice, whatever windows the guest has
    #[arg(long)]
    pin_memory: bool,
}

/// The profiles that a guest's card can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum GuestProfile {
    /// With interrupts and window check
    Irq,
    /// The irq profile with orders
    Relay,
    /// Without interrupts, window check and orders
    Base,
    /// The name of irq in version 0.1, accepted for one release
    #[value(hide = true)]
    Fermata,
}

impl Serve {
    /// Returns the options of the command line, supplemented by those of the file.
    fn options(self) -> Result<Options> {
        let file = match &self.config {
            Some(path) => read(path).with_context(|| path.display().to_string())?,
            None => Options::default(),
        };
        let mut options = self.options.or(file);
        if options.profile == Some(GuestProfile::Fermata) {
            complain!("fermata-vfio: the profile fermata is now called irq");
            options.profile = Some(GuestProfile::Irq);
        }
        Ok(options)
    }
}

fn read(path: &Path) -> Result<Options> {
    Ok(toml::from_str(&std::fs::read_to_string(path)?)?)
}

impl Options {
    /// Returns these options, with those that are not given here taken from `others`.
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

    fn socket(&self) -> Result<&Path> {
        let socket = self.socket.as_deref();
        socket.context("no socket is given: --socket, or socket in the file of --config")
    }

    fn device(&self) -> PathBuf {
        let device = self.device.clone();
        device.unwrap_or_else(|| PathBuf::from("/dev/fermata0"))
    }

    fn profile(&self) -> Profile {
        match self.profile {
            Some(GuestProfile::Relay) => Profile::Relay,
            Some(GuestProfile::Base) => Profile::Base,
            Some(GuestProfile::Irq | GuestProfile::Fermata) | None => Profile::Irq,
        }
    }

    /// Returns the parameters of contexts that are given.
    fn params(&self) -> Vec<(Param, u64)> {
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
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn one_daemon_serves_a_socket() {
        let path = std::env::temp_dir().join(format!("fermata-vfio-{}", std::process::id()));
        let first = listen(&path, GROUP).unwrap();
        assert!(listen(&path, GROUP).is_err());
        drop(first);
        for (mode, bits) in [(GROUP, 0o660), (OWNER, 0o600)] {
            let second = listen(&path, mode).unwrap();
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o777, bits);
            drop(second);
        }
        remove_socket(&path).unwrap();
        assert!(!path.exists());
        remove_socket(&path).unwrap();
    }

    #[test]
    fn only_a_socket_is_replaced() {
        let name = format!("fermata-vfio-file-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, "kept").unwrap();
        let error = listen(&path, GROUP).unwrap_err();
        assert!(format!("{error:#}").contains("not a socket"), "{error:#}");
        remove_socket(&path).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        fs::remove_file(&path).unwrap();
    }

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
    fn the_retired_name_of_a_profile_is_accepted() {
        let path = std::env::temp_dir().join(format!("fermata-vfio-{}.toml", std::process::id()));
        fs::write(&path, "profile = \"fermata\"").unwrap();
        let serve = Serve {
            config: Some(path.clone()),
            options: Options::default(),
        };
        let profile = serve.options().unwrap().profile;
        fs::remove_file(&path).unwrap();
        assert_eq!(profile, Some(GuestProfile::Irq));
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
