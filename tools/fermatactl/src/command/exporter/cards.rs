// SPDX-License-Identifier: GPL-2.0-or-later
//! The figures of a card from sysfs, and the tenants of its groups, from the paths of their
//! cgroups.

use super::pages::{Buckets, Labels};
use crate::card::{read_lines, Figures, Monitor};
use crate::view::is_idle;
use fermata::{lower_bound, EngineId, BUCKETS};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The bucket whose lower bound, about a microsecond, is the first bound of the metrics. After it
/// there is one bound in each octave.
const FIRST_BOUND: usize = 20;
const BUCKETS_OF_OCTAVE: usize = 4;

/// A card whose figures could be read.
pub(super) struct Card {
    pub(super) name: String,
    /// Files of the card in sysfs, by name.
    pub(super) about: BTreeMap<&'static str, String>,
    pub(super) slots: Vec<Slot>,
    /// By number.
    pub(super) groups: BTreeMap<u64, Group>,
}

/// A slot.
pub(super) struct Slot {
    pub(super) number: u64,
    /// The engine's name, or its UUID.
    pub(super) engine: String,
    pub(super) figures: Figures,
    /// By name.
    pub(super) histograms: BTreeMap<String, Buckets>,
}

/// A group that has contexts.
#[derive(Default)]
pub(super) struct Group {
    pub(super) run_ns: u64,
    /// How many contexts are in each state.
    pub(super) states: BTreeMap<String, u64>,
    /// For how long the context that has been idle longest has had no job that wants a slot.
    pub(super) idle_ns: u64,
}

impl Card {
    /// Reads the files of a card in its folder. `None`: the card has gone, or the caller may not
    /// read them.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let monitor = Monitor::read_from(folder)?;
        let histograms = read_lines(&folder.join("histograms")).ok()?;
        let files = [
            "profile",
            "policy",
            "uapi_version",
            "contexts",
            "max_contexts",
        ];
        let about = files.map(|name| Some((name, fs::read_to_string(folder.join(name)).ok()?)));
        let mut about: BTreeMap<_, _> = about.into_iter().collect::<Option<_>>()?;
        let device = fs::canonicalize(folder.join("device")).ok()?;
        about.insert("pci_address", device.file_name()?.to_string_lossy().into());
        let mut card = Self {
            name: folder.file_name()?.to_string_lossy().into(),
            about,
            slots: monitor.slots().map(Slot::of).collect(),
            groups: groups(&monitor),
        };
        card.slots.sort_by_key(|slot| slot.number);
        histograms
            .lines()
            .for_each(|line| card.take_histogram(line));
        Some(card)
    }

    /// Returns the value of a file.
    pub(super) fn value(&self, name: &str) -> &str {
        self.about.get(name).map_or("", |value| value.trim_end())
    }

    fn take_histogram(&mut self, line: &str) {
        let figures = Figures::in_line(line);
        let number = figures.find("slot");
        let mut slots = self.slots.iter_mut();
        let slot = slots.find(|slot| Some(slot.number) == number);
        if let (Some(slot), Some(name)) = (slot, figures.text("histogram")) {
            slot.histograms.insert(name.into(), buckets(&figures));
        }
    }
}

impl Slot {
    fn of(figures: &Figures) -> Self {
        let id = figures.text("engine").unwrap_or_default();
        let name = id.parse().ok().and_then(EngineId::name);
        Self {
            number: figures.of("slot"),
            engine: name.unwrap_or(id).into(),
            figures: figures.clone(),
            histograms: BTreeMap::new(),
        }
    }
}

fn groups(monitor: &Monitor) -> BTreeMap<u64, Group> {
    let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
    for context in monitor.contexts() {
        let group = groups.entry(context.of("group")).or_default();
        // Lines are read one after the other.
        group.run_ns = group.run_ns.max(context.of("group_run_ns"));
        let state = context.text("state").unwrap_or_default();
        *group.states.entry(state.into()).or_default() += 1;
        if is_idle(state) {
            group.idle_ns = group.idle_ns.max(context.of("state_ns"));
        }
    }
    groups
}

/// Returns the histogram of a line.
fn buckets(figures: &Figures) -> Buckets {
    let counts: Vec<u64> = (0..BUCKETS).map(|n| figures.of(&n.to_string())).collect();
    let bounds = (FIRST_BOUND..BUCKETS).step_by(BUCKETS_OF_OCTAVE);
    Buckets {
        below: bounds
            .map(|bucket| (lower_bound(bucket), counts[..bucket].iter().sum()))
            .collect(),
        count: counts.iter().sum(),
        sum_ns: figures.of("sum_ns"),
    }
}

/// Returns the labels of a group: its number, and what the path of its cgroup tells.
pub(super) fn labels(number: u64, path: Option<&str>) -> Labels {
    let labels = Labels::default().with("group", number.to_string());
    let Some(path) = path else {
        return labels;
    };
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let found = [
        ("unit", unit(&names)),
        ("vm", names.iter().find_map(|name| machine(name))),
        ("pod", names.iter().find_map(|name| pod(name))),
        (
            "container",
            names.iter().rev().find_map(|name| container(name)),
        ),
        ("slurm_job", slurm(&names, "job_")),
        ("slurm_step", slurm(&names, "step_")),
    ];
    let labels = labels.with("cgroup", path);
    let found = found.into_iter();
    found.fold(labels, |labels, (name, value)| match value {
        Some(value) => labels.with(name, value),
        None => labels,
    })
}

/// Returns the innermost service or scope of systemd.
fn unit(names: &[&str]) -> Option<String> {
    let is_unit = |name: &&&str| {
        let kind = name.rsplit_once('.').map(|(_, kind)| kind);
        matches!(kind, Some("service" | "scope"))
    };
    names.iter().rev().find(is_unit).map(|name| (*name).into())
}

/// Returns the name of a virtual machine: of fermata-vfio@NAME.service, or as libvirt names the
/// scope of a machine, machine-qemu\x2dNUMBER\x2dNAME.scope.
fn machine(name: &str) -> Option<String> {
    if let Some(instance) = name.strip_prefix("fermata-vfio@") {
        return Some(unescaped(instance.strip_suffix(".service")?));
    }
    let scope = name.strip_prefix("machine-")?.strip_suffix(".scope")?;
    let scope = unescaped(scope);
    let (number, machine) = scope.strip_prefix("qemu-")?.split_once('-')?;
    number.parse::<u32>().ok()?;
    Some(machine.into())
}

/// Decodes the escapes of systemd (`\x2d`), like systemd-escape --unescape, except that `-` stands
/// for itself in these names.
fn unescaped(name: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = name;
    while let Some((front, back)) = rest.split_once("\\x") {
        bytes.extend(front.bytes());
        let byte = back.get(..2);
        let byte = byte.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = byte {
            bytes.push(byte);
            rest = &back[2..];
        } else {
            bytes.extend(b"\\x");
            rest = back;
        }
    }
    bytes.extend(rest.bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the UID of a pod: from kubepods-...-podUID.slice, with _ for -, or from podUID.
fn pod(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) if slice.starts_with("kubepods-") => slice.rsplit_once("-pod")?.1,
        Some(_) => return None,
        None => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    let is_uid = uid.len() >= 32
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

/// Returns the identifier of a container: 64 hexadecimal digits after the name of its runtime.
fn container(name: &str) -> Option<String> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let id = name.rsplit('-').next()?;
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| id.into())
}

/// Returns what follows `prefix` in the names of the cgroups that slurmstepd has made.
fn slurm(names: &[&str], prefix: &str) -> Option<String> {
    let scope = names
        .iter()
        .position(|name| name.ends_with("slurmstepd.scope"))?;
    let mut below = names[scope + 1..].iter().take(2);
    below
        .find_map(|name| name.strip_prefix(prefix))
        .map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_card_is_what_its_files_say() {
        let root = std::env::temp_dir().join(format!("fermatactl-cards-{}", std::process::id()));
        let folder = root.join("fermata3");
        fs::create_dir_all(root.join("0000:00:05.0")).unwrap();
        fs::create_dir_all(&folder).unwrap();
        symlink(root.join("0000:00:05.0"), folder.join("device")).unwrap();
        let monitor =
            "slot=1 engine=4c494e4b-4544-4c49-5354-000000000001 state=vacant starts=2  \n\
            slot=0 engine=00000000-0000-0000-0000-000000000002 state=running starts=3  \n\
            context=65536 group=9 state=queued group_run_ns=5  \n        \n\
            context=65538 group=9 state=running group_run_ns=7 state_ns=9  \n\
            context=65540 group=9 state=done group_run_ns=7 state_ns=4  \n\
            context=65541 group=9 state=held group_run_ns=7 state_ns=3  \n\
            context=65539 group=1 state=queued group_run_ns=1  \n";
        let histograms = "slot=1 histogram=gap count=6 sum_ns=99 0=1 19=2 20=2 127=1   \n\
            slot=7 histogram=gap count=1 sum_ns=1 0=1  \n";
        let files = [
            ("monitor", monitor),
            ("histograms", histograms),
            ("profile", "base\n"),
            ("policy", "fair\n"),
            ("contexts", "3\n"),
            ("max_contexts", "4096\n"),
            ("uapi_version", "3\n"),
        ];
        for (name, text) in files {
            assert!(Card::read(&folder).is_none(), "without {name}");
            fs::write(folder.join(name), text).unwrap();
        }
        let card = Card::read(&folder).unwrap();
        fs::remove_dir_all(&root).unwrap();

        assert_eq!((&card.name[..], card.value("policy")), ("fermata3", "fair"));
        assert_eq!(card.value("pci_address"), "0000:00:05.0");
        let [first, second] = &card.slots[..] else {
            panic!()
        };
        assert_eq!(
            (&second.engine[..], second.figures.of("starts")),
            ("linkedlist", 2)
        );
        assert_eq!(first.engine, "00000000-0000-0000-0000-000000000002");
        assert!(first.histograms.is_empty());
        let gap = &second.histograms["gap"];
        assert_eq!((gap.count, gap.sum_ns), (6, 99));
        assert_eq!(gap.below[..2], [(1024, 3), (2048, 5)]);
        assert_eq!(gap.below.last(), Some(&(1 << 36, 5)));
        let group = &card.groups[&9];
        assert_eq!((card.groups.len(), group.run_ns), (2, 7));
        assert_eq!((group.states["running"], group.idle_ns), (1, 4));
        assert_eq!(card.groups[&1].idle_ns, 0);
    }

    fn text(path: &str) -> String {
        labels(7, Some(path)).to_string()
    }

    #[test]
    fn a_path_tells_whose_the_group_is() {
        let id = "0123456789abcdef".repeat(4);
        let uid = "12345678-9abc-def0-1234-56789abcdef0";
        let slice = uid.replace('-', "_");
        let table = [
            ("/".into(), String::new()),
            ("/user.slice".into(), String::new()),
            (
                "/system.slice/a@b.service/x".into(),
                ",unit=\"a@b.service\"".into(),
            ),
            (
                "/system.slice/system-fermata\\x2dvfio.slice/fermata-vfio@my\\x2dvm.service".into(),
                ",unit=\"fermata-vfio@my\\\\x2dvm.service\",vm=\"my-vm\"".into(),
            ),
            (
                "/machine.slice/machine-qemu\\x2d12\\x2dweb\\x2d1.scope/libvirt/emulator".into(),
                ",unit=\"machine-qemu\\\\x2d12\\\\x2dweb\\\\x2d1.scope\",vm=\"web-1\"".into(),
            ),
            (
                format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{slice}.slice/cri-containerd-{id}.scope"),
                format!(",unit=\"cri-containerd-{id}.scope\",pod=\"{uid}\",container=\"{id}\""),
            ),
            (
                format!("/kubepods/burstable/pod{uid}/{id}"),
                format!(",pod=\"{uid}\",container=\"{id}\""),
            ),
            (
                "/system.slice/n1_slurmstepd.scope/job_7/step_batch/user/task_0".into(),
                ",unit=\"n1_slurmstepd.scope\",slurm_job=\"7\",slurm_step=\"batch\"".into(),
            ),
        ];
        for (path, rest) in table {
            let cgroup = path.replace('\\', "\\\\");
            assert_eq!(
                text(&path),
                format!("{{group=\"7\",cgroup=\"{cgroup}\"{rest}}}")
            );
        }
        assert_eq!(labels(7, None).to_string(), "{group=\"7\"}");
    }

    #[test]
    fn other_names_are_not_taken_for_these() {
        for path in [
            "/job_7/step_0",
            "/podium",
            "/pod1/x-y",
            "/a-pod.slice",
            "/machine-qemu\\x2dx\\x2dy",
            "/machine-\\xzz.scope.d",
            "/fermata-vfio@",
        ] {
            let text = text(path);
            assert_eq!(text.matches('=').count(), 2, "{text}");
        }
        assert_eq!(unescaped("a\\x2"), "a\\x2");
        assert_eq!(unescaped("\\xff\\xé"), "\u{fffd}\\xé");
    }
}
