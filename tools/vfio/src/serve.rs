// SPDX-License-Identifier: GPL-2.0-or-later
//! Serves one virtual machine after the other at a socket.

use crate::control::Control;
use crate::lenders::Lenders;
use crate::log::tell;
use crate::options::{Options, Serve};
use crate::pool::HostSlot;
use crate::settings::Settings;
use anyhow::{bail, ensure, Context as _, Result};
use clap::ValueEnum as _;
use fermata::{Context, EngineId};
use fermata_card::card::Card;
use fermata_card::config::{CardConfig, IrqKind, Settings as SlotSettings};
use fermata_card::engine::EngineKind;
use fermata_card::log::Recorder;
use fermata_card::maker::EngineMaker;
use fermata_card::vfio::{remove_socket, Server};
use rustix::fs::Mode;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
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
    println!("ready");
    sd_notify::notify(false, &[sd_notify::NotifyState::Ready]).context("NOTIFY_SOCKET")?;
    let end = server.run(|error| tell(format_args!("the virtual machine is lost: {error}")));
    card.stop();
    for path in control.into_iter().chain([socket]) {
        let _ = remove_socket(path);
    }
    end.context("vfio-user socket")
}

/// The guest's card: engines that the host's card has, with snapshots of the same size.
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

/// The engines of the host's slots that a guest's card can show, and the pages of their snapshots.
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

/// Listens on a socket that only those of `mode` may connect to. A socket that nobody listens on is
/// replaced.
fn listen(path: &Path, mode: Mode) -> Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        bail!("{}: another daemon serves it", path.display());
    }
    remove_socket(path).with_context(|| path.display().to_string())?;
    let before = rustix::process::umask(!mode);
    let bound = UnixListener::bind(path).with_context(|| path.display().to_string());
    rustix::process::umask(before);
    bound
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
}
