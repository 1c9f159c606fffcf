//! The configuration file: several VMs and how they share, as `docs/sharing.md` documents it. The whole file is checked before any process is
//! started. All mistakes are reported, each with its line, its table and its key (`problem`).

mod memory;
mod options;
pub(in crate::broker) mod paths;
pub(in crate::broker) mod places;
mod problem;
mod room;
pub(super) mod share;
#[cfg(test)]
mod tests;
mod unknown;

use crate::options::{MapDeviceMemory, Quotas, Start, VmGroup, VmOptions, level_name};
use crate::sandbox::CgroupMode;
use crate::service::state_folder;
use config::{Amount, DeviceLimits, size};
use log::LevelFilter;
use options::{KEYS, shown};
use paths::{absolute, meant};
use places::default_control_socket;
pub use problem::Problems;
use problem::{Found, Places, Problem, table_of_vm};
pub use room::RoomSettings;
use room::amount;
use sched::{Class, Share};
use serde::{Deserialize, Serialize};
use share::{HardwareSlices, Policy, ShareForm};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;
use toml::de::DeTable;
use toml::{Table, Value};
use unknown::unknown;

/// The settings of the whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The policy by which VMs share a GPU.
    pub policy: Policy,
    /// The most of a GPU's time that may be left unused to wait for VMs that submit again at once; if none, the scheduler's default.
    pub anticipation: Option<f64>,
    /// The time slices of GPUs' hardware while VMs of the latency class have work.
    #[serde(default)]
    pub hardware_slices: HardwareSlices,
    /// The path of the control socket.
    pub control_socket: PathBuf,
    /// The number of the group whose members may use the control socket, beside the daemon's user.
    pub control_socket_group: Option<u32>,
    /// The address at which metrics are served, if any.
    pub metrics: Option<MetricsAddress>,
    /// The file that gets a line for each completed piece of work, if any.
    pub log_grants: Option<PathBuf>,
    /// The choice of whether the control group that the broker was started in is divided among VMs.
    pub cgroup: CgroupMode,
    /// The settings about memory of GPUs of which VMs are promised more than exists.
    pub room: RoomSettings,
    /// The VMs, by name.
    pub vms: Vec<VmSettings>,
}

/// One VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "PassedSettings", into = "PassedSettings")]
pub struct VmSettings {
    /// The VM's name.
    pub name: String,
    /// The VM's part of the GPU.
    pub share: Share,
    /// The VM's options: those of its table and of the table of defaults, and its part of the amounts for all VMs.
    pub options: VmOptions,
    /// The options of the VM's table and of the defaults as `KEY=VALUE`, by their keys.
    pub written: Vec<String>,
    /// The VM's part of the amounts for all VMs, as `KEY=VALUE`.
    pub parts: Vec<String>,
    /// The VM's paths that no two VMs can share, without links and `..`: the socket comes first.
    pub own_paths: Vec<PathBuf>,
    /// Bytes of its GPUs' memory that the VM is never asked to give up.
    pub reserved_memory: u64,
}

/// The form in which the settings of a VM are passed on to another program. That program reads the options itself, with its own defaults and bounds.
/// An option that it cannot read has its default until the program reads the file again. This comes next, and reports the mistake.
#[derive(Serialize, Deserialize)]
struct PassedSettings {
    name: String,
    #[serde(with = "ShareForm")]
    share: Share,
    written: Vec<String>,
    parts: Vec<String>,
    own_paths: Vec<PathBuf>,
    reserved_memory: u64,
}

impl From<VmSettings> for PassedSettings {
    fn from(vm: VmSettings) -> Self {
        let VmSettings { name, share, written, parts, own_paths, reserved_memory, .. } = vm;
        Self { name, share, written, parts, own_paths, reserved_memory }
    }
}

impl From<PassedSettings> for VmSettings {
    fn from(passed: PassedSettings) -> Self {
        let PassedSettings { name, share, written, parts, own_paths, reserved_memory } = passed;
        let options = KEYS.read_what_it_can(&[written.as_slice(), &parts].concat());
        Self { name, share, options, written, parts, own_paths, reserved_memory }
    }
}

impl VmSettings {
    /// Returns these settings with the options read from `written`, as another program reads them.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn read_anew(self) -> Self {
        PassedSettings::from(self).into()
    }

    /// The time for which a submission of the VM may run while others wait, on a GPU that is a software driver (`software`) or is not.
    pub fn contended(&self, software: bool) -> Duration {
        self.options.hangs.limits(software).max_submit_time_contended
    }

    /// The contexts that the VM may have.
    #[must_use]
    pub fn contexts(&self) -> usize {
        self.options.quotas.max_contexts.unwrap_or(DeviceLimits::default().contexts)
    }

    /// The name of the VM's table, as in its heading.
    #[must_use]
    pub fn table(&self) -> String {
        table_of_vm(&self.name)
    }

    /// The path of the VM's socket as the file has it, made absolute.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        absolute(self.options.socket_path.as_deref().unwrap_or(Path::new("")))
    }
}

/// A configuration file, with the log level that is needed to read it, now or again.
#[derive(Clone, Debug)]
pub struct VmsFile {
    path: PathBuf,
    level: LevelFilter,
}

impl VmsFile {
    /// The file at `path`. VMs that name no log level have `level`.
    #[must_use]
    pub fn new(path: PathBuf, level: LevelFilter) -> Self {
        Self { path, level }
    }

    /// Returns the command line of a broker that serves what the file says.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let level = format!("--log-level={}", level_name(self.level));
        vec!["--config".into(), self.path.clone().into_os_string(), level.into()]
    }

    /// Reads and checks the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is no regular file, has more than 4 MiB, or has mistakes.
    pub fn read(&self) -> Result<Settings, Problems> {
        let settings = self.text().and_then(|text| Settings::parse(&text, self.level));
        settings.map_err(|problems| problems.in_file(&self.path))
    }

    fn text(&self) -> Result<String, Problems> {
        let wrong = |what: &dyn std::fmt::Display| Problems::of_file(what.to_string());
        let bytes = outside::read(&self.path, FILE_BYTES).map_err(|error| wrong(&error))?;
        String::from_utf8(bytes).map_err(|error| wrong(&error))
    }
}

/// The most bytes of the file: each of 256 VMs may fill several pages of text.
const FILE_BYTES: u64 = 4 << 20;

/// The address at which metrics are served, to this machine only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetricsAddress {
    /// At a port of the loopback interface.
    Loopback(SocketAddr),
    /// At a Unix socket.
    Unix(PathBuf),
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            Ok(_) => Err(format!(
                "\"{text}\" is not of this machine only: use 127.0.0.1:PORT, [::1]:PORT or a path"
            )),
            Err(_) if text.contains('/') => some_path(text).map(Self::Unix),
            Err(_) => {
                Err(format!("\"{text}\" is neither 127.0.0.1:PORT, [::1]:PORT nor a path with a slash"))
            }
        }
    }
}

/// Keys outside of all tables.
const TOP_KEYS: &[&str] = &[
    "anticipation",
    "cgroup",
    "control-socket",
    "control-socket-group",
    "defaults",
    "device-memory",
    "gpu-memory",
    "hardware-slices",
    "host-memory",
    "log-grants",
    "memory-wait",
    "metrics",
    "policy",
    "vm",
];
/// Keys of a VM that are no options of its device process.
const SHARE_KEYS: &[&str] = &["ceiling", "class", "reserved-memory", "weight"];
/// Options whose values no two VMs can share.
const OWN_PATHS: &[&str] = &["socket-path", "state-dir"];
const NAME_BYTES: usize = 63;
/// The reason why a VM cannot have a name.
const NO_NAME: &str = "a name has up to 63 bytes, no / and no invisible characters, begins with no -, . or space, and ends with no space";
/// The reason why a table within the table of a VM is refused.
const NO_TABLE: &str = "is a table, and no key has one; quote the name of a VM that has a dot: [vm.\"a.b\"]";
/// The reason why `$STATE_DIRECTORY` cannot hold the folder of a VM.
const NO_TEXT: &str =
    "the folder in $STATE_DIRECTORY has a path that is not UTF-8: write another as state-dir";
/// Most VMs of one file.
const VMS: usize = 256;

impl Settings {
    pub(super) fn parse(text: &str, level: LevelFilter) -> Result<Self, Problems> {
        let (placed, errors) = DeTable::parse_recoverable(text);
        let file: Table = match (errors.is_empty(), text.parse()) {
            (true, Ok(file)) => file,
            (true, Err(error)) => return Err(Problems::of_syntax(text, vec![error])),
            (false, _) => return Err(Problems::of_syntax(text, errors)),
        };
        let mut found = Found::default();
        let settings = Self::of_file(&file, level, &mut found);
        found.none_or(settings, &Places::new(text, placed.get_ref()))
    }

    /// Returns the settings of the file. Mistakes are left out, and added to `found`.
    fn of_file(file: &Table, level: LevelFilter, found: &mut Found) -> Self {
        let unknown_keys = file.keys().filter(|key| !TOP_KEYS.contains(&key.as_str()));
        found.extend(unknown_keys.map(|key| Problem::of_key("", key, unknown(key, TOP_KEYS))));
        let policy = found.right(top(file, "policy", Policy::named)).flatten().unwrap_or_default();
        let anticipation = top(file, "anticipation", |text| share::percent(text, 0.0..=8.0));
        let slices = found.right(top(file, "hardware-slices", HardwareSlices::named)).flatten();
        let control_socket = found.right(top(file, "control-socket", some_path)).flatten();
        let mut vms = vms(file, policy, level, found);
        found.extend(paths::check(&vms));
        found.right(DEVICE_MEMORY.share(file, &mut vms));
        found.right(HOST_MEMORY.share(file, &mut vms));
        let room = found.right(RoomSettings::of_file(file)).unwrap_or_default();
        let settings = Self {
            policy,
            anticipation: found.right(anticipation).flatten(),
            hardware_slices: slices.unwrap_or_default(),
            control_socket: control_socket.unwrap_or_else(default_control_socket),
            control_socket_group: found.right(top(file, "control-socket-group", group)).flatten(),
            metrics: found.right(top(file, "metrics", str::parse)).flatten(),
            cgroup: found.right(top(file, "cgroup", cgroup)).flatten().unwrap_or_default(),
            log_grants: found.right(top(file, "log-grants", some_path)).flatten(),
            room,
            vms: vms.into_iter().map(Draft::finish).collect(),
        };
        found.extend(settings.check_own_sockets(file));
        found.extend(settings.room.check(&settings.vms));
        settings
    }

    /// Returns the options of a VM, with those that follow from the file's settings for all VMs.
    #[must_use]
    pub fn options(&self, vm: &VmSettings) -> VmOptions {
        let mut options = vm.options.clone();
        if self.room.forbids_maps(&options) {
            options.map_device_memory = Some(MapDeviceMemory::Never);
        }
        options
    }

    /// Returns the message that starts the device process of a VM which has this control group.
    pub(super) fn start(&self, vm: &VmSettings, group: Option<VmGroup>, follows: bool) -> Start {
        Start { options: self.options(vm), awaits_room: self.room.gpu_memory.is_some(), group, follows }
    }

    /// Returns the options of a VM as `KEY=VALUE`, without its socket's path.
    pub(super) fn told(&self, vm: &VmSettings) -> Vec<String> {
        let own = vm.written.iter().filter(|option| !option.starts_with("socket-path="));
        let follows = self.room.forbids_maps(&vm.options).then(|| "map-device-memory=never".to_owned());
        own.chain(&vm.parts).cloned().chain(follows).collect()
    }

    /// Replaces the VM of the same name by this one, or else inserts it in the order of names.
    pub(super) fn put(&mut self, vm: VmSettings) {
        match self.vms.iter_mut().find(|before| before.name == vm.name) {
            Some(before) => *before = vm,
            None => self.vms.insert(self.vms.partition_point(|other| other.name < vm.name), vm),
        }
    }

    /// Removes the VM of this name.
    pub(super) fn take_out(&mut self, name: &str) {
        self.vms.retain(|vm| vm.name != name);
    }

    /// Checks that the broker's own sockets differ from each other and from those of VMs.
    fn check_own_sockets(&self, file: &Table) -> Vec<Problem> {
        let metrics = match &self.metrics {
            Some(MetricsAddress::Unix(path)) => Some(path),
            _ => None,
        };
        let own = [("control-socket", Some(&self.control_socket)), ("metrics", metrics)];
        let mut taken = paths::sockets_of_vms(file);
        let twice = own.into_iter().filter_map(|(key, path)| {
            let other = taken.insert(meant(path?), key.to_owned())?;
            Some(Problem::of_key("", key, format!("{} is {other} as well", path?.display())))
        });
        twice.collect()
    }
}

/// A VM that is being read, with its own paths by their keys.
struct Draft {
    vm: VmSettings,
    own_paths: Vec<(&'static str, PathBuf)>,
}

impl Draft {
    fn finish(self) -> VmSettings {
        VmSettings { own_paths: self.own_paths.iter().map(|(_, path)| meant(path)).collect(), ..self.vm }
    }
}

fn vms(file: &Table, policy: Policy, level: LevelFilter, found: &mut Found) -> Vec<Draft> {
    let tables = Tables { policy, level };
    let no_table = |other: &Value| format!("{} is not a table", shown(other));
    let defaults = table(file, "defaults", no_table, found);
    let own = defaults.keys().filter(|key| OWN_PATHS.contains(&key.as_str()));
    let misplaced =
        |key: &String| Problem::of_key("defaults", key, "belongs to one VM: write it in each [vm.NAME]");
    found.extend(own.map(misplaced));
    let defaults = tables.read("defaults", defaults, found);
    // A broker without a VM waits for the file to name the first one.
    let vms = table(file, "vm", |_| "write a table [vm.NAME] for each VM".into(), found);
    if vms.len() > VMS {
        found.add(Problem::of_key("", "vm", format!("{} VMs are more than {VMS}", vms.len())));
        return Vec::new();
    }
    vms.iter().filter_map(|(name, table)| tables.draft(name, table, &defaults, found)).collect()
}

/// Returns a table of the file, or one without keys if the file lacks it or has another value in its place.
fn table<'a>(
    file: &'a Table,
    key: &str,
    wrong: impl FnOnce(&Value) -> String,
    found: &mut Found,
) -> &'a Table {
    static NONE: LazyLock<Table> = LazyLock::new(Table::new);
    match file.get(key) {
        None => &NONE,
        Some(Value::Table(table)) => table,
        Some(other) => {
            found.add(Problem::of_key("", key, wrong(other)));
            &NONE
        }
    }
}

/// Reads tables of VMs.
struct Tables {
    policy: Policy,
    /// The log level of VMs without a log level in the file.
    level: LevelFilter,
}

/// The keys of a table: those of the share, and the options as `KEY=VALUE`, none for a switch that is off.
type Read<'a> = (BTreeMap<&'a str, ShareKey>, BTreeMap<&'a str, Vec<String>>);

impl Tables {
    /// Reads one VM. The keys of its own table go before the defaults. Returns none if the VM has mistakes that keep its options from being read.
    fn draft(&self, name: &str, table: &Value, defaults: &Read<'_>, found: &mut Found) -> Option<Draft> {
        if !is_name(name) {
            found.add(Problem::of_key("vm", name, NO_NAME));
        }
        let Value::Table(table) = table else {
            found.add(Problem::of_key("vm", name, format!("{} is not a table", shown(table))));
            return None;
        };
        let (mut share, mut written) = defaults.clone();
        let (own_share, own_written) = self.read(&table_of_vm(name), table, found);
        written.extend(own_written);
        share.extend(own_share);
        if !table.contains_key("socket-path") {
            found.add(Problem::of_vm(name, "socket-path", "is needed"));
        }
        let level = || vec![format!("log-level={}", level_name(self.level))];
        written.entry("log-level").or_insert_with(level);
        let own_path = |key: &'static str| Some((key, PathBuf::from(table.get(key)?.as_str()?)));
        let mut own_paths: Vec<_> = OWN_PATHS.iter().filter_map(|key| own_path(key)).collect();
        if let Some(folder) = state_folder().filter(|_| !written.contains_key("state-dir")) {
            let folder = folder.join(name);
            match folder.to_str() {
                Some(path) => _ = written.insert("state-dir", vec![format!("state-dir={path}")]),
                None => found.add(Problem::of_vm(name, "state-dir", NO_TEXT)),
            }
            own_paths.push(("state-dir", folder));
        }
        let written: Vec<_> = written.into_values().flatten().collect();
        let options = found.right(KEYS.read(&written).map_err(|what| Problem::of_vm(name, "", what)))?;
        let (share, reserved_memory) = share_of(&share);
        let vm = VmSettings {
            name: name.to_owned(),
            share,
            options,
            written,
            parts: Vec::new(),
            own_paths: Vec::new(),
            reserved_memory,
        };
        Some(Draft { vm, own_paths })
    }

    /// Reads the keys of a table. Keys with mistakes are left out.
    fn read<'a>(&self, place: &str, table: &'a Table, found: &mut Found) -> Read<'a> {
        let (mut share, mut options) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in table {
            let wrong = |what: String| Problem::of_key(place, key, what);
            if SHARE_KEYS.contains(&key.as_str()) {
                let read = found.right(share_key(key, value, self.policy).map_err(wrong));
                share.extend(read.map(|read| (key.as_str(), read)));
                continue;
            }
            match KEYS.as_written(key, value) {
                Ok(written) => _ = options.insert(key.as_str(), written),
                Err(Some(what)) => found.add(wrong(what)),
                Err(None) if value.is_table() => found.add(wrong(NO_TABLE.into())),
                Err(None) => found.add(wrong(unknown(key, &[SHARE_KEYS, &KEYS.names()].concat()))),
            }
        }
        (share, options)
    }
}

/// One key of the share, checked.
#[derive(Clone, Copy)]
enum ShareKey {
    Weight(u32),
    Class(Class),
    Ceiling(f64),
    Reserved(u64),
}

/// Returns the share that the keys set, and the reserved memory.
fn share_of(keys: &BTreeMap<&str, ShareKey>) -> (Share, u64) {
    let mut reserved = 0;
    let mut share = Share { weight: share::WEIGHT, class: Class::Normal, ceiling: None };
    for key in keys.values() {
        match key {
            ShareKey::Weight(weight) => share.weight = *weight,
            ShareKey::Class(class) => share.class = *class,
            ShareKey::Ceiling(ceiling) => share.ceiling = Some(*ceiling),
            ShareKey::Reserved(bytes) => reserved = *bytes,
        }
    }
    (share, reserved)
}

fn share_key(key: &str, value: &Value, policy: Policy) -> Result<ShareKey, String> {
    match (key, value) {
        ("weight", _) if policy == Policy::Equal => Err(share::EQUAL.into()),
        ("weight", Value::Integer(number)) => share::weight(*number).map(ShareKey::Weight),
        ("class", Value::String(name)) => share::class(name).map(ShareKey::Class),
        ("ceiling", Value::String(text)) => share::ceiling(text).map(ShareKey::Ceiling),
        ("reserved-memory", value) => match amount(value, str::parse)? {
            Amount::Bytes(bytes) => Ok(ShareKey::Reserved(bytes)),
            Amount::Part(_) => Err("write a size: a percentage is not enough here".into()),
        },
        ("weight", other) => Err(format!("{} is not a whole number from 1 to 10000", shown(other))),
        ("class", other) => {
            Err(format!("{} is none of \"normal\", \"latency\", \"background\"", shown(other)))
        }
        (_, other) => Err(format!("{} is not a percentage from \"1%\" to \"100%\"", shown(other))),
    }
}

/// Memory that the file gives to all VMs together, and the access to a VM's part of it.
struct Shared {
    /// The key: before the tables, of the whole; in a VM's table, of its own part.
    key: &'static str,
    read: fn(&str) -> Result<Amount, String>,
    part: fn(&Quotas) -> Option<Amount>,
    give: fn(&mut Quotas, Amount),
}

/// The memory of GPUs.
const DEVICE_MEMORY: Shared = Shared {
    key: "device-memory",
    read: str::parse,
    part: |quotas| quotas.device_memory,
    give: |quotas, part| quotas.device_memory = Some(part),
};
/// The host's memory, always in bytes.
const HOST_MEMORY: Shared = Shared {
    key: "host-memory",
    read: |text| size(text).map(Amount::Bytes),
    part: |quotas| quotas.host_memory.map(Amount::Bytes),
    give: |quotas, part| {
        if let Amount::Bytes(bytes) = part {
            quotas.host_memory = Some(bytes);
        }
    },
};

impl Shared {
    /// Shares out the memory for all VMs, if the file names its amount.
    fn share(&self, file: &Table, vms: &mut [Draft]) -> Result<(), Problem> {
        let Some(total) = self.total(file)? else { return Ok(()) };
        let part = |draft: &Draft| (self.part)(&draft.vm.options.quotas);
        let owned: Vec<_> = vms.iter().map(|draft| (draft.vm.name.as_str(), part(draft))).collect();
        let parts = memory::share_out(self.key, total, &owned)?;
        for (Draft { vm, .. }, amount) in vms.iter_mut().zip(parts) {
            if (self.part)(&vm.options.quotas).is_none() {
                (self.give)(&mut vm.options.quotas, amount);
                vm.parts.push(format!("{}={amount}", self.key));
            }
        }
        Ok(())
    }

    fn total(&self, file: &Table) -> Result<Option<Amount>, Problem> {
        let total = file.get(self.key).map(|value| amount(value, self.read)).transpose();
        total.map_err(|what| Problem::of_key("", self.key, what))
    }
}

/// Returns whether a VM may have this name. The name is a part of paths (its control group, its folder below `$STATE_DIRECTORY`), operators type it,
/// and it appears in the log and in metrics.
fn is_name(name: &str) -> bool {
    let allowed = |c: char| c != '/' && c == outside::visible(c) && (c == ' ' || !c.is_whitespace());
    let is_whole = !name.starts_with(['-', '.', ' ']) && !name.ends_with(' ');
    (1..=NAME_BYTES).contains(&name.len()) && name.chars().all(allowed) && is_whole
}

/// A string outside of all tables.
fn top<T>(
    file: &Table,
    key: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, Problem> {
    let wrong = |what: String| Problem::of_key("", key, what);
    match file.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => read(text).map(Some).map_err(wrong),
        Some(other) => Err(wrong(format!("{} is not a string", shown(other)))),
    }
}

fn some_path(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("an empty path".into()),
        _ if text.contains('\0') => Err("a path with a zero byte".into()),
        _ => Ok(text.into()),
    }
}

fn group(text: &str) -> Result<u32, String> {
    outside::group(text).map_err(|error| format!("\"{text}\": {error}"))
}

fn cgroup(text: &str) -> Result<CgroupMode, String> {
    match text {
        "auto" => Ok(CgroupMode::Auto),
        "on" => Ok(CgroupMode::On),
        "off" => Ok(CgroupMode::Off),
        _ => Err(format!("\"{text}\" is none of \"auto\", \"on\", \"off\"")),
    }
}
