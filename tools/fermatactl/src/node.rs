// SPDX-License-Identifier: GPL-2.0
//! Opens the device node of a card, and tells why a node cannot be opened.

use crate::advice::Call;
use crate::presence::{self, Presence};
use crate::trouble::{Result, Trouble};
use fermata::{Context, Error};
use rustix::fs::{Access, AtFlags, CWD};
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Opens the node at `path`; `card` is the number of the card whose usual node that is.
pub(crate) fn open(path: &Path, card: Option<u32>) -> Result<Context> {
    let metadata = fs::metadata(path).map_err(|error| match (error.kind(), card) {
        (ErrorKind::NotFound, Some(card)) => Presence::look().without_node(Some(card)),
        _ => Trouble::of_file(path, &error),
    })?;
    check_driver(path, &metadata, card)?;
    Context::open(path).map_err(|error| match error {
        Error::NotPermitted => not_permitted(path, &metadata, card),
        Error::NotReady | Error::Gone => no_card_behind(path, card),
        error => Trouble::of_call(&path.display().to_string(), Call::Open, error),
    })
}

/// Refuses a file that is no card, before the file is opened: opening the device of another driver may have effects.
fn check_driver(path: &Path, metadata: &Metadata, card: Option<u32>) -> Result<()> {
    if !metadata.file_type().is_char_device() {
        return Err(no_card(path, "it is no character device"));
    }
    match (presence::major(), card) {
        (Ok(None), Some(card)) => Err(Presence::NotLoaded.without_node(Some(card))),
        (Ok(ours), _) if ours != Some(rustix::fs::major(metadata.rdev())) => Err(no_card(
            path,
            "its device number is not one of the module fermata",
        )),
        _ => Ok(()),
    }
}

fn no_card(path: &Path, why: &str) -> Trouble {
    Trouble::new(
        format!("{} is not a fermata card: {why}", path.display()),
        "name a card by its number (0), its name (fermata0) or its device (/dev/fermata0): `fermatactl list` shows the cards that there are",
    )
}

/// The error for a node with a number of the module that no card has.
fn no_card_behind(path: &Path, card: Option<u32>) -> Trouble {
    match Presence::look() {
        Presence::Loaded(Some(cards)) if cards.is_empty() => {
            Presence::Loaded(Some(cards)).without_node(card)
        }
        _ => Trouble::new(
            format!("{}: the card of this node is gone", path.display()),
            "`dmesg` tells why; `fermatactl list` shows which cards there are",
        ),
    }
}

/// The error for a node that the caller may not open, by its mode or for another reason.
fn not_permitted(path: &Path, metadata: &Metadata, card: Option<u32>) -> Trouble {
    let device = path.display();
    let wanted = Access::READ_OK | Access::WRITE_OK;
    if rustix::fs::accessat(CWD, path, wanted, AtFlags::EACCESS).is_ok() {
        return Trouble::new(
            format!("{device}: not permitted to open the node, although its mode allows it"),
            format!(
                "a container's device cgroup, a mount with nodev or a security module forbids it; {}: a node that is made or mounted there is not enough",
                presence::pass_on(card.unwrap_or(0))
            ),
        );
    }
    Trouble::new(
        format!("{device}: not permitted to open the node"),
        who_may(metadata),
    )
}

/// Returns who may open a node by its mode.
fn who_may(metadata: &Metadata) -> String {
    const GROUP_READ_WRITE: u32 = 0o060;
    let is_for_group =
        metadata.mode() & GROUP_READ_WRITE == GROUP_READ_WRITE && metadata.gid() != 0;
    if !is_for_group {
        return "only root may, until a udev rule gives the node to a group: see docs/operations.md"
            .into();
    }
    let group = uzers::get_group_by_gid(metadata.gid());
    let group = group.map_or_else(
        || metadata.gid().to_string(),
        |group| group.name().to_string_lossy().into_owned(),
    );
    format!("be a member of the group {group} (`adduser USER {group}`, then log in anew), or root")
}
