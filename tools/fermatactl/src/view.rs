// SPDX-License-Identifier: GPL-2.0-or-later
//! The data that commands show, as text and as JSON (docs/fermatactl.md).

use crate::advice::Call;
use crate::card::{of_present, Card, CardName, Figures, Monitor};
use crate::cgroup::Paths;
use crate::format::end_of_path;
use crate::process;
use crate::trouble::Result;
use crate::why;
use fermata::{uapi, EngineId, State};
use fermata_output::text::printable;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// A card.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CardView {
    /// Number of the card; null if its device has an unusual name.
    pub(crate) card: Option<u32>,
    pub(crate) device: PathBuf,
    pub(crate) interface_version: u32,
    pub(crate) features: Vec<&'static str>,
    /// Null without an IOMMU or sysfs.
    pub(crate) iommu_group: Option<IommuGroup>,
    /// Null for a policy of a later driver, and without sysfs.
    pub(crate) policy: Option<&'static str>,
    /// The starvation boost interval; 0: none. Null without sysfs.
    pub(crate) boost_ns: Option<u64>,
    pub(crate) max_contexts: u32,
    pub(crate) max_arena_bytes: u64,
    pub(crate) slots: Vec<SlotView>,
    pub(crate) contexts: Vec<ContextView>,
}

/// A slot of a card.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SlotView {
    pub(crate) slot: u32,
    /// Null for an engine that docs/emulated-card.md does not name.
    pub(crate) engine: Option<&'static str>,
    /// UUID of the engine.
    pub(crate) engine_id: String,
    /// Context on the slot.
    pub(crate) context: Option<u32>,
    pub(crate) flags: Vec<&'static str>,
    /// The group that the slot serves exclusively, if the caller may know it.
    pub(crate) exclusive_group: Option<u64>,
    pub(crate) snapshot_bytes: u64,
    /// Null if the caller may not know other users' figures; likewise the next three.
    pub(crate) switches: Option<u64>,
    pub(crate) busy_ns: Option<u64>,
    pub(crate) resets: Option<u64>,
    pub(crate) interrupt_storms: Option<u64>,
    pub(crate) save_ns: u64,
    pub(crate) restore_ns: u64,
}

/// A context: one program's use of a card.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ContextView {
    pub(crate) context: u32,
    pub(crate) state: &'static str,
    /// `disabled`, `throttled`, `no-slot`.
    pub(crate) attributes: Vec<&'static str>,
    pub(crate) engine: Option<&'static str>,
    pub(crate) engine_id: Option<String>,
    /// Slot that the context is on.
    pub(crate) slot: Option<u32>,
    /// Slots that the context may use.
    pub(crate) slots: Vec<u32>,
    /// Null if the caller may not know it.
    pub(crate) pid: Option<u32>,
    pub(crate) command: Option<String>,
    /// Null if the caller may not know it.
    pub(crate) group: Option<u64>,
    /// Path of the group's cgroup, below the root of the hierarchy; null if it was not found.
    pub(crate) group_path: Option<String>,
    /// Number of the current or last job; 0 before the first job. Null if the caller may not know
    /// it; likewise all from here on.
    pub(crate) job: Option<u64>,
    pub(crate) priority: Option<u32>,
    pub(crate) weight: Option<u32>,
    pub(crate) latency_critical: Option<bool>,
    /// Also null with an older driver; likewise the next two.
    pub(crate) timeslice_ns: Option<u64>,
    pub(crate) preempt_timeout_ns: Option<u64>,
    /// Percent of a slot; 0 without a cap.
    pub(crate) cap: Option<u32>,
    pub(crate) run_ns: Option<u64>,
    pub(crate) wait_ns: Option<u64>,
    pub(crate) slices: Option<u64>,
    pub(crate) preemptions: Option<u64>,
    /// How long the job has been queued, or on its slot without a break; in other states, for how
    /// long the context has had no job that wants a slot.
    pub(crate) state_ns: Option<u64>,
    /// Why the job is queued: a name of [`WAITS`]; null if it is not.
    pub(crate) waits: Option<&'static str>,
    /// The group whose cap is used up.
    pub(crate) waits_group: Option<u64>,
    /// The same in words, and why a job is held.
    pub(crate) waits_because: Option<String>,
}

/// Returns whether a context in this state has no job that wants a slot.
pub(crate) fn is_idle(state: &str) -> bool {
    !matches!(state, "queued" | "running")
}

/// The IOMMU group of a card: the devices that share its address space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct IommuGroup {
    number: u32,
    /// Addresses of the other devices, such as `0000:00:05.1`, sorted.
    neighbours: Vec<String>,
}

impl IommuGroup {
    fn of_card(number: u32) -> Option<Self> {
        Self::of_device(Path::new(&format!(
            "/sys/class/fermata/fermata{number}/device"
        )))
    }

    fn of_device(device: &Path) -> Option<Self> {
        let group = fs::canonicalize(device.join("iommu_group")).ok()?;
        let number = group.file_name()?.to_str()?.parse().ok()?;
        let own = fs::canonicalize(device).ok()?;
        let names = fs::read_dir(group.join("devices")).ok()?.flatten();
        let mut neighbours: Vec<_> = names
            .map(|entry| entry.file_name())
            .filter(|name| Some(name.as_os_str()) != own.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        neighbours.sort();
        Some(Self { number, neighbours })
    }
}

impl std::fmt::Display for IommuGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.number)?;
        if self.neighbours.is_empty() {
            return Ok(());
        }
        write!(f, ", with {}", self.neighbours.join(", "))
    }
}

impl CardView {
    /// Reads the present state of the cards of these names; without a name, of the cards that are
    /// not gone and that the caller may open.
    pub(crate) fn all(names: &[CardName]) -> Result<Vec<Self>> {
        let (cards, mut paths) = (Card::open_all(names)?, Paths::default());
        let views = cards.iter().map(|card| Self::explained(card, &mut paths));
        if names.is_empty() {
            of_present(views)
        } else {
            views.collect()
        }
    }

    /// Reads the present state of a card, without the paths of groups and without the reasons why
    /// jobs wait.
    pub(crate) fn of(card: &Card) -> Result<Self> {
        let info = card.file.card_info();
        let info = info.map_err(|error| card.refused("what it is", Call::CardInfo, error))?;
        let contexts = card.contexts()?;
        let tells_all = card.tells_all();
        let slots = (0..info.slots)
            .map(|slot| {
                let info = card.file.slot_info(slot);
                let info =
                    info.map_err(|error| card.refused("its slots", Call::SlotInfo, error))?;
                Ok(SlotView::of(&info, &contexts, tells_all))
            })
            .collect::<Result<Vec<_>>>()?;
        let (policy, boost) = match card.file.policy() {
            // A container may have the card's node, and no sysfs.
            Err(fermata::Error::NotReady) => (None, None),
            Err(error) => return Err(card.refused("its policy", Call::PolicyRead, error)),
            Ok((policy, boost)) => (policy, Some(boost)),
        };
        let mut view = Self {
            card: card.number(),
            device: card.device().into(),
            interface_version: info.uapi_version,
            features: names_of_bits(info.features, &FEATURES),
            iommu_group: card.number().and_then(IommuGroup::of_card),
            policy: policy.map(fermata::Policy::name),
            boost_ns: boost.map(|boost| boost.as_nanos() as u64),
            max_contexts: info.max_contexts,
            max_arena_bytes: info.max_arena,
            contexts: contexts
                .iter()
                .map(|context| ContextView::of(context, &slots))
                .collect(),
            slots,
        };
        if !tells_all {
            if let Some(monitor) = Monitor::read(card.device()) {
                view.fill_in(&monitor);
            }
        }
        Ok(view)
    }

    /// Reads the present state of a card. The paths of groups are added to `paths`.
    pub(crate) fn explained(card: &Card, paths: &mut Paths) -> Result<Self> {
        let mut view = Self::of(card)?;
        view.name_groups(paths);
        why::explain(card, &mut view, paths);
        Ok(view)
    }

    /// Fills in the paths of groups.
    fn name_groups(&mut self, paths: &mut Paths) {
        let of_contexts = self.contexts.iter().flat_map(|context| {
            let own = context.group.map(|group| (group, context.pid));
            // The group whose cap it is may be one above.
            own.into_iter()
                .chain(context.waits_group.map(|group| (group, context.pid)))
        });
        let of_slots = self.slots.iter().filter_map(|slot| slot.exclusive_group);
        paths.look_for(of_contexts.chain(of_slots.map(|group| (group, None))));
        for context in &mut self.contexts {
            let path = context.group.and_then(|group| paths.of(group));
            context.group_path = path.map(Into::into);
        }
    }

    /// Fills in figures of other users, which the driver returns to privileged users only.
    fn fill_in(&mut self, monitor: &Monitor) {
        for slot in &mut self.slots {
            if let Some(figures) = monitor.slot(slot.slot) {
                slot.fill_in(figures);
            }
        }
        for context in &mut self.contexts {
            if let Some(figures) = monitor.context(context.context) {
                context.fill_in(figures);
            }
        }
    }

    /// Returns the context with this number.
    pub(crate) fn context(&self, number: u32) -> Option<&ContextView> {
        let mut contexts = self.contexts.iter();
        contexts.find(|context| context.context == number)
    }
}

const FEATURES: [(u64, &str); 7] = [
    (uapi::FEATURE_IRQ, "irq"),
    (uapi::FEATURE_WINDOW, "window"),
    (uapi::FEATURE_QUIESCENT, "quiescent"),
    (uapi::FEATURE_SNAPSHOT_UNIT, "snapshot-unit"),
    (uapi::FEATURE_RELAY, "relay"),
    (uapi::FEATURE_IOMMU, "iommu"),
    (uapi::FEATURE_FOREIGN_MEMORY, "foreign-memory"),
];
const SLOT_FLAGS: [(u64, &str); 5] = [
    (uapi::SLOT_QUARANTINED as u64, "quarantined"),
    (uapi::SLOT_BOUNDARY as u64, "boundary"),
    (uapi::SLOT_BOUNDARY_ONLY as u64, "boundary-only"),
    (uapi::SLOT_EXCLUSIVE as u64, "exclusive"),
    (uapi::SLOT_POLLED as u64, "polled"),
];
const ATTRIBUTES: [(u64, &str); 4] = [
    (uapi::STATUS_DISABLED as u64, "disabled"),
    (uapi::STATUS_THROTTLED as u64, "throttled"),
    (uapi::STATUS_NO_SLOT as u64, "no-slot"),
    (uapi::STATUS_HOLD as u64, "hold"),
];

/// The names of `FERMATA_WAITS_*`.
const WAITS: [(u32, &str); 8] = [
    (uapi::WAITS_DISABLED, "disabled"),
    (uapi::WAITS_NO_SLOT, "no-slot"),
    (uapi::WAITS_CARD, "card"),
    (uapi::WAITS_BUDGET, "budget"),
    (uapi::WAITS_CAP, "cap"),
    (uapi::WAITS_GROUP_CAP, "group-cap"),
    (uapi::WAITS_GANG, "gang"),
    (uapi::WAITS_TURN, "turn"),
];

fn name_of_wait(number: u64) -> Option<&'static str> {
    let mut names = WAITS.iter();
    let found = names.find(|(wait, _)| u64::from(*wait) == number);
    found.map(|(_, name)| *name)
}

fn names_of_bits(bits: u64, names: &[(u64, &'static str)]) -> Vec<&'static str> {
    let set = names.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, name)| *name).collect()
}

/// Returns the numbers of the set bits.
pub(crate) fn numbers_of_bits(mask: u32) -> Vec<u32> {
    (0..u32::BITS).filter(|bit| mask >> bit & 1 != 0).collect()
}

impl SlotView {
    /// Makes the view of a slot. Unless `tells_all`, the driver gives 0 for other users' figures.
    pub(crate) fn of(
        info: &uapi::SlotInfo,
        contexts: &[uapi::ContextInfo],
        tells_all: bool,
    ) -> Self {
        let told = |figure| Some(figure).filter(|_| tells_all);
        let engine = EngineId {
            low: info.afu_id_lo,
            high: info.afu_id_hi,
        };
        let on_it = contexts.iter().find(|context| context.slot == info.slot);
        Self {
            slot: info.slot,
            engine: engine.name(),
            engine_id: engine.to_string(),
            context: on_it.map(|context| context.context),
            flags: names_of_bits(info.flags.into(), &SLOT_FLAGS),
            exclusive_group: Some(info.group).filter(|group| *group != 0),
            snapshot_bytes: u64::from(info.state_pages) * 4096,
            switches: told(info.switches),
            busy_ns: told(info.busy_ns),
            resets: told(info.resets),
            interrupt_storms: told(info.storms),
            save_ns: info.save_ns,
            restore_ns: info.restore_ns,
        }
    }

    fn fill_in(&mut self, figures: &Figures) {
        let context = figures.find("context").and_then(|n| u32::try_from(n).ok());
        self.context = context.filter(|context| *context != 0);
        self.switches = figures.find("starts");
        self.busy_ns = figures.find("busy_ns");
        self.resets = figures.find("resets");
        self.interrupt_storms = figures.find("storms");
    }

    /// Returns the engine's name, or its UUID.
    pub(crate) fn engine_name(&self) -> &str {
        self.engine.unwrap_or(&self.engine_id)
    }
}

impl ContextView {
    pub(crate) fn of(info: &uapi::ContextInfo, slots: &[SlotView]) -> Self {
        let allowed = numbers_of_bits(info.slot_mask);
        // All slots that a context may use have the same engine.
        let engine = slots.iter().find(|slot| allowed.contains(&slot.slot));
        // Neither a weight nor a timeslice is 0; older drivers tell no timeslice.
        let (tells, tells_more) = (info.weight != 0, info.timeslice_ns != 0);
        let told = |figure: u64| Some(figure).filter(|_| tells);
        let pid = u32::try_from(info.pid)
            .ok()
            .filter(|pid| *pid != uapi::NO_PID);
        Self {
            context: info.context,
            state: name_of(info.state.into()),
            attributes: names_of_bits(info.attributes.into(), &ATTRIBUTES),
            engine: engine.and_then(|slot| slot.engine),
            engine_id: engine.map(|slot| slot.engine_id.clone()),
            slot: Some(info.slot).filter(|slot| *slot != uapi::NO_SLOT),
            slots: allowed,
            pid,
            command: pid.and_then(process::command),
            group: Some(info.group).filter(|group| *group != 0),
            group_path: None,
            job: told(info.job),
            priority: Some(info.priority).filter(|_| tells),
            weight: Some(info.weight).filter(|_| tells),
            latency_critical: Some(info.latency_critical != 0).filter(|_| tells),
            timeslice_ns: Some(info.timeslice_ns).filter(|_| tells_more),
            preempt_timeout_ns: Some(info.preempt_timeout_ns).filter(|_| tells_more),
            cap: Some(info.cap).filter(|_| tells_more),
            run_ns: told(info.run_ns),
            wait_ns: told(info.wait_ns),
            slices: told(info.slices),
            preemptions: told(info.preemptions),
            state_ns: Some(info.state_ns).filter(|ns| *ns != 0),
            waits: name_of_wait(info.waits.into()),
            waits_group: Some(info.waits_group).filter(|group| *group != 0),
            waits_because: None,
        }
    }

    fn fill_in(&mut self, figures: &Figures) {
        let small = |name| figures.find(name).and_then(|n| u32::try_from(n).ok());
        self.slot = small("slot");
        self.pid = small("pid");
        self.command = self.pid.and_then(process::command);
        self.group = figures.find("group");
        self.priority = small("priority");
        self.weight = small("weight");
        self.job = figures.find("job");
        self.run_ns = figures.find("run_ns");
        self.wait_ns = figures.find("wait_ns");
        self.slices = figures.find("slices");
        self.preemptions = figures.find("preemptions");
        self.state_ns = figures.find("state_ns").filter(|ns| *ns != 0);
        self.waits = figures.find("waits").and_then(name_of_wait);
        self.waits_group = figures.find("waits_group");
    }

    /// Returns for how long the context has had no job that wants a slot.
    pub(crate) fn idle_ns(&self) -> Option<u64> {
        self.state_ns.filter(|_| is_idle(self.state))
    }

    /// Returns the path of the group, shortened to `width`, or its number.
    pub(crate) fn group_name(&self, width: usize) -> String {
        match (&self.group_path, self.group) {
            (Some(path), _) => end_of_path(width, path),
            (None, Some(group)) => group.to_string(),
            (None, None) => "-".into(),
        }
    }

    /// Returns the command as it can be shown on a terminal.
    pub(crate) fn command_text(&self) -> Option<String> {
        self.command.as_deref().map(printable)
    }

    /// Returns the engine's name, or its UUID.
    pub(crate) fn engine_name(&self) -> &str {
        self.engine.or(self.engine_id.as_deref()).unwrap_or("-")
    }

    /// Returns state and attributes.
    pub(crate) fn state_text(&self) -> String {
        std::iter::once(self.state)
            .chain(self.attributes.iter().copied())
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// Returns the name of a state.
pub(crate) fn name_of(state: State) -> &'static str {
    match state {
        State::New => "new",
        State::Idle => "idle",
        State::Queued => "queued",
        State::Running => "running",
        State::Held => "held",
        State::Done => "done",
        State::Failed => "failed",
        State::Empty => "empty",
        State::Unknown(_) => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_names() {
        assert_eq!(names_of_bits(0, &FEATURES), [""; 0]);
        assert_eq!(names_of_bits(1 << 32 | 1, &FEATURES), ["irq", "iommu"]);
        assert_eq!(numbers_of_bits(0b1010), [1, 3]);
    }

    #[test]
    fn a_context_has_the_engine_of_its_slots() {
        let (low, high) = (EngineId::SHA256.low, EngineId::SHA256.high);
        let slot = uapi::SlotInfo {
            slot: 2,
            afu_id_lo: low,
            afu_id_hi: high,
            ..Default::default()
        };
        let context = uapi::ContextInfo {
            context: 7,
            slot: 2,
            slot_mask: 1 << 2,
            state: uapi::STATE_RUNNING,
            attributes: uapi::STATUS_DISABLED,
            ..Default::default()
        };
        let slots = [SlotView::of(&slot, &[context], true)];
        assert_eq!(slots[0].context, Some(7));
        let view = ContextView::of(&context, &slots);
        assert_eq!((view.engine_name(), view.slot), ("sha256", Some(2)));
        assert_eq!(view.state_text(), "running,disabled");
        assert_eq!((view.pid, view.group), (None, None));
    }

    #[test]
    fn what_the_driver_does_not_tell_is_null() {
        let slot = uapi::SlotInfo::default();
        let figures = |tells_all| {
            let json = serde_json::to_value(SlotView::of(&slot, &[], tells_all)).unwrap();
            ["switches", "busy_ns", "resets", "interrupt_storms"].map(|name| json[name].clone())
        };
        assert!(figures(true).iter().all(|figure| *figure == 0));
        assert!(figures(false).iter().all(serde_json::Value::is_null));

        let names = [
            "job",
            "priority",
            "weight",
            "latency_critical",
            "timeslice_ns",
            "run_ns",
            "wait_ns",
            "slices",
            "preemptions",
        ];
        let mut context = uapi::ContextInfo::default();
        let of_others = serde_json::to_value(ContextView::of(&context, &[])).unwrap();
        (context.weight, context.timeslice_ns) = (1, 1);
        let own = serde_json::to_value(ContextView::of(&context, &[])).unwrap();
        for name in names {
            assert!(of_others[name].is_null() && !own[name].is_null(), "{name}");
        }
    }
}
