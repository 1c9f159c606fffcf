//! The configuration file: several VMs and how they share, as `docs/sharing.md` documents it. All of it is checked before anything is
//! started, and everything that is wrong is said, each with its line, its table and its key (`problem`).

mod memory;
mod options;
mod paths;
pub(in crate::broker) mod places;
mod problem;
mod room;
pub(super) mod share;
#[cfg(test)]
mod tests;
mod unknown;

use crate::sandbox::{CgroupMode, GroupLimits};
use crate::service::state_folder;
use clap::{ArgMatches, Command};
use config::{Amount, DeviceLimits, HangLimits, size};
pub use options::against_movable;
use options::{VmOptions, shown};
use paths::{absolute, meant};
use places::default_control_socket;
pub use problem::Problems;
use problem::{Found, Places, Problem, table_of_vm};
pub use room::RoomSettings;
use sched::{Class, Share};
use serde::{Deserialize, Serialize};
use share::{Policy, ShareForm};
use std::any::Any;
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

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The policy by which VMs share a GPU.
    pub policy: Policy,
    /// Part of a GPU's time that may be left unused at most to wait for VMs that submit again at once; if none, the scheduler's default.
    pub anticipation: Option<f64>,
    /// The path of the socket at which an operator asks and commands.
    pub control_socket: PathBuf,
    /// The number of the group whose members may do so, beside the daemon's user.
    pub control_socket_group: Option<u32>,
    /// The address at which metrics can be had, if anywhere.
    pub metrics: Option<MetricsAddress>,
    /// The file that gets a line for each completed piece of work, if any.
    pub log_grants: Option<PathBuf>,
    /// The choice of whether the control group that the broker was started in is divided among VMs.
    pub cgroup: CgroupMode,
    /// The memory of GPUs, where VMs are promised more of it than there is.
    pub room: RoomSettings,
    /// The VMs, by name.
    pub vms: Vec<VmSettings>,
}

/// One VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmSettings {
    /// The VM's name.
    pub name: String,
    /// The VM's part of the GPU.
    #[serde(with = "ShareForm")]
    pub share: Share,
    /// Options of its device process, as its table and that of the defaults say.
    pub arguments: Vec<OsString>,
    /// More options: its part of what there is for all VMs.
    pub parts: Vec<OsString>,
    /// Paths that no two VMs can have, without links and `..`: its socket first.
    pub own_paths: Vec<PathBuf>,
    /// Contexts it may have.
    pub contexts: usize,
    /// Bytes of its GPUs' memory that it is never asked to give up.
    pub reserved_memory: u64,
    /// Limits of its own on its workers' control group.
    pub group_limits: GroupLimits,
    /// The time for which a submission of the VM may run while others wait, if its tables say so.
    pub max_submit_time_contended: Option<Duration>,
}

impl VmSettings {
    /// The time for which a submission of the VM may run while others wait, on a GPU that is a software driver or not.
    pub fn contended(&self, software: bool) -> Duration {
        let usual = HangLimits::of(software).max_submit_time_contended;
        self.max_submit_time_contended.unwrap_or(usual)
    }

    /// The name of its table, as its heading has it.
    #[must_use]
    pub fn table(&self) -> String {
        table_of_vm(&self.name)
    }

    /// The options of its tables.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> + Clone {
        // They were text in the file.
        self.arguments.iter().filter_map(|word| word.to_str())
    }

    /// The options for its part of what there is for all VMs.
    pub(super) fn part_words(&self) -> impl Iterator<Item = &str> + Clone {
        self.parts.iter().filter_map(|word| word.to_str())
    }

    /// The GPU memory that the VM may hold, if its tables or its part of what there is for all bound it.
    pub(super) fn device_memory(&self) -> Option<Amount> {
        let value = |word: &str| word.strip_prefix("--device-memory=")?.parse().ok();
        self.words().chain(self.part_words()).find_map(value)
    }

    /// The path of the VM's socket as the file has it, made absolute.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        let path = self.words().find_map(|word| word.strip_prefix("--socket-path="));
        absolute(Path::new(path.unwrap_or_default()))
    }
}

/// A configuration file, and what is needed to read it, now or again.
#[derive(Clone, Debug)]
pub struct VmsFile {
    path: PathBuf,
    command: Command,
    level: String,
}

impl VmsFile {
    /// The file at `path`. `command` is the command line of one VM; `level` the log level of those that name none.
    #[must_use]
    pub fn new(path: PathBuf, command: Command, level: String) -> Self {
        Self { path, command, level }
    }

    /// Returns the command line of a broker that serves what the file says.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let level = format!("--log-level={}", self.level);
        vec!["--config".into(), self.path.clone().into_os_string(), level.into()]
    }

    /// Reads and checks the file.
    ///
    /// # Errors
    ///
    /// It cannot be read, is no regular file or has more than 4 MiB, or something in it is wrong.
    pub fn read(&self) -> Result<Settings, Problems> {
        let settings = self.text().and_then(|text| Settings::parse(&text, &self.command, &self.level));
        settings.map_err(|problems| problems.in_file(&self.path))
    }

    fn text(&self) -> Result<String, Problems> {
        let wrong = |what: &dyn std::fmt::Display| Problems::of_file(what.to_string());
        let bytes = outside::read(&self.path, FILE_BYTES).map_err(|error| wrong(&error))?;
        String::from_utf8(bytes).map_err(|error| wrong(&error))
    }
}

/// Most bytes of the file: of 256 VMs each may say as much as fills several pages.
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
    "host-memory",
    "log-grants",
    "memory-wait",
    "metrics",
    "policy",
    "vm",
];
/// Keys of a VM that are no options of its device process.
const SHARE_KEYS: &[&str] = &["ceiling", "class", "reserved-memory", "weight"];
/// Options whose value no two VMs can have.
const OWN_PATHS: &[&str] = &["socket-path", "state-dir"];
const NAME_BYTES: usize = 63;
/// The reason why a VM cannot have a name.
const NO_NAME: &str = "a name is up to 63 bytes without / and what cannot be seen, begins with no -, . or space, and ends with no space";
/// The reason why a table within one of a VM is none.
const NO_TABLE: &str = "is a table, and no key has one; quote the name of a VM that has a dot: [vm.\"a.b\"]";
/// Most VMs of one file.
const VMS: usize = 256;

impl Settings {
    pub(super) fn parse(text: &str, command: &Command, level: &str) -> Result<Self, Problems> {
        let (placed, errors) = DeTable::parse_recoverable(text);
        let file: Table = match (errors.is_empty(), text.parse()) {
            (true, Ok(file)) => file,
            (true, Err(error)) => return Err(Problems::of_syntax(text, vec![error])),
            (false, _) => return Err(Problems::of_syntax(text, errors)),
        };
        let mut found = Found::default();
        let settings = Self::of_file(&file, command, level, &mut found);
        found.none_or(settings, &Places::new(text, placed.get_ref()))
    }

    /// Returns what the file says. What is wrong is left out, and `found`.
    fn of_file(file: &Table, command: &Command, level: &str, found: &mut Found) -> Self {
        let unknown_keys = file.keys().filter(|key| !TOP_KEYS.contains(&key.as_str()));
        found.extend(unknown_keys.map(|key| Problem::of_key("", key, unknown(key, TOP_KEYS))));
        let policy = found.right(top(file, "policy", Policy::named)).flatten().unwrap_or_default();
        let anticipation = top(file, "anticipation", |text| share::percent(text, 0.0..=8.0));
        let control_socket = found.right(top(file, "control-socket", some_path)).flatten();
        let options = VmOptions::of(command);
        let mut vms = vms(file, &options, policy, found);
        found.extend(paths::check(&vms));
        let own = |vm: &Draft<'_>| vm.value("device_memory");
        found.right(share_memory(file, "device-memory", own, str::parse, &mut vms));
        let own = |vm: &Draft<'_>| vm.value("host_memory").map(Amount::Bytes);
        found.right(share_memory(file, "host-memory", own, |text| size(text).map(Amount::Bytes), &mut vms));
        let room = found.right(RoomSettings::of_file(file)).unwrap_or_default();
        let settings = Self {
            policy,
            anticipation: found.right(anticipation).flatten(),
            control_socket: control_socket.unwrap_or_else(default_control_socket),
            control_socket_group: found.right(top(file, "control-socket-group", group)).flatten(),
            metrics: found.right(top(file, "metrics", str::parse)).flatten(),
            cgroup: found.right(top(file, "cgroup", cgroup)).flatten().unwrap_or_default(),
            log_grants: found.right(top(file, "log-grants", some_path)).flatten(),
            room,
            vms: vms.into_iter().filter_map(|vm| found.right(vm.finish(&options, level))).collect(),
        };
        found.extend(settings.check_own_sockets(file));
        found.extend(settings.room.check(&settings.vms));
        settings
    }

    /// Returns the options of a VM's device process, apart from those that only the broker gives.
    #[must_use]
    pub fn words(&self, vm: &VmSettings) -> Vec<OsString> {
        [vm.arguments.as_slice(), &vm.parts, self.room.maps(vm).as_slice()].concat()
    }

    /// Returns the options with which the broker starts a VM's device process; those of its control `group` among them.
    pub(super) fn arguments(&self, vm: &VmSettings, group: &[OsString]) -> Vec<OsString> {
        [self.words(vm).as_slice(), self.room.awaits().as_slice(), group].concat()
    }

    /// Returns the options of a VM's device process as `KEY=VALUE`, without its socket's path.
    pub(super) fn options(&self, vm: &VmSettings) -> Vec<String> {
        let words = self.words(vm);
        let options = words.iter().filter_map(|word| word.to_str()?.strip_prefix("--"));
        options.filter(|option| !option.starts_with("socket-path=")).map(str::to_owned).collect()
    }

    /// Puts a VM in the place of the one with its name, or among the others by its name.
    pub(super) fn put(&mut self, vm: VmSettings) {
        match self.vms.iter_mut().find(|before| before.name == vm.name) {
            Some(before) => *before = vm,
            None => self.vms.insert(self.vms.partition_point(|other| other.name < vm.name), vm),
        }
    }

    /// Takes the VM of this name out.
    pub(super) fn take_out(&mut self, name: &str) {
        self.vms.retain(|vm| vm.name != name);
    }

    /// Checks that our own sockets are nobody else's.
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

/// A VM that is being read.
struct Draft<'a> {
    name: &'a str,
    share: Share,
    reserved_memory: u64,
    /// Words of the command line by key.
    arguments: BTreeMap<&'a str, Vec<OsString>>,
    /// Words for its part of what there is for all.
    parts: Vec<OsString>,
    matches: ArgMatches,
    own_paths: Vec<(&'static str, PathBuf)>,
}

impl Draft<'_> {
    fn value<T: Any + Clone + Send + Sync>(&self, id: &str) -> Option<T> {
        self.matches.try_get_one::<T>(id).ok().flatten().cloned()
    }

    fn finish(mut self, options: &VmOptions<'_>, level: &str) -> Result<VmSettings, Problem> {
        self.arguments.entry("log-level").or_insert_with(|| vec![format!("--log-level={level}").into()]);
        let arguments: Vec<OsString> = self.arguments.into_values().flatten().collect();
        let whole = options.parse(&[arguments.as_slice(), &self.parts].concat());
        let matches = whole.map_err(|what| Problem::of_vm(self.name, "", what))?;
        let contexts = matches.try_get_one::<usize>("max_contexts").ok().flatten().copied();
        let contended = matches.try_get_one::<Duration>("max_submit_time_contended").ok().flatten().copied();
        let group_limits = GroupLimits {
            memory: matches.try_get_one::<u64>("worker_memory").ok().flatten().copied(),
            tasks: matches.try_get_one::<u32>("max_tasks").ok().flatten().copied().map(u64::from),
        };
        Ok(VmSettings {
            group_limits,
            name: self.name.to_owned(),
            share: self.share,
            reserved_memory: self.reserved_memory,
            arguments,
            parts: self.parts,
            own_paths: self.own_paths.iter().map(|(_, path)| meant(path)).collect(),
            contexts: contexts.unwrap_or(DeviceLimits::default().contexts),
            max_submit_time_contended: contended,
        })
    }
}

fn vms<'a>(file: &'a Table, options: &VmOptions<'a>, policy: Policy, found: &mut Found) -> Vec<Draft<'a>> {
    let no_table = |other: &Value| format!("{} is not a table", shown(other));
    let defaults = table(file, "defaults", no_table, found);
    let own = defaults.keys().filter(|key| OWN_PATHS.contains(&key.as_str()));
    let misplaced =
        |key: &String| Problem::of_key("defaults", key, "belongs to one VM: write it in each [vm.NAME]");
    found.extend(own.map(misplaced));
    let defaults = read_keys("defaults", defaults, options, policy, found);
    // A broker without a VM waits for the file to name the first one.
    let vms = table(file, "vm", |_| "write a table [vm.NAME] for each VM".into(), found);
    if vms.len() > VMS {
        found.add(Problem::of_key("", "vm", format!("{} VMs are more than {VMS}", vms.len())));
        return Vec::new();
    }
    let draft =
        |(name, table): (&'a String, &'a Value)| draft(name, table, &defaults, options, policy, found);
    vms.iter().filter_map(draft).collect()
}

/// A table of the file; one without keys if there is none, or what is no table.
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

/// Reads one VM; what its own table says goes before what all VMs have. None if not even that much is right that it can be looked at.
fn draft<'a>(
    name: &'a str,
    table: &'a Value,
    defaults: &Keys<'a>,
    options: &VmOptions<'a>,
    policy: Policy,
    found: &mut Found,
) -> Option<Draft<'a>> {
    if !is_name(name) {
        found.add(Problem::of_key("vm", name, NO_NAME));
    }
    let Value::Table(table) = table else {
        found.add(Problem::of_key("vm", name, format!("{} is not a table", shown(table))));
        return None;
    };
    let (mut share, mut arguments) = defaults.clone();
    let (own_share, own_arguments) = read_keys(&table_of_vm(name), table, options, policy, found);
    arguments.extend(own_arguments);
    share.extend(own_share);
    if !table.contains_key("socket-path") {
        found.add(Problem::of_vm(name, "socket-path", "is needed"));
    }
    let words: Vec<OsString> = arguments.values().flatten().cloned().collect();
    let matches = found.right(options.parse(&words).map_err(|what| Problem::of_vm(name, "", what)))?;
    let own_path = |key: &'static str| Some((key, PathBuf::from(table.get(key)?.as_str()?)));
    let mut own_paths: Vec<_> = OWN_PATHS.iter().filter_map(|key| own_path(key)).collect();
    if let Some(folder) = state_folder().filter(|_| !arguments.contains_key("state-dir")) {
        let folder = folder.join(name);
        arguments.insert("state-dir", vec![option_with("--state-dir", &folder)]);
        own_paths.push(("state-dir", folder));
    }
    let (share, reserved_memory) = share_of(&share);
    Some(Draft { name, share, reserved_memory, arguments, parts: Vec::new(), matches, own_paths })
}

/// One key of the share, checked.
#[derive(Clone, Copy)]
enum ShareKey {
    Weight(u32),
    Class(Class),
    Ceiling(f64),
    Reserved(u64),
}

/// The share that keys make up, and the memory that is reserved.
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

/// The keys of the share; and the rest as words of the command line, none for a switch that is off.
type Keys<'a> = (BTreeMap<&'a str, ShareKey>, BTreeMap<&'a str, Vec<OsString>>);

/// Keys of a table of VMs: those of the share, and the rest as arguments. Those with which something is wrong are left out.
fn read_keys<'a>(
    place: &str,
    table: &'a Table,
    options: &VmOptions<'_>,
    policy: Policy,
    found: &mut Found,
) -> Keys<'a> {
    let (mut share, mut arguments) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in table {
        let wrong = |what: String| Problem::of_key(place, key, what);
        if SHARE_KEYS.contains(&key.as_str()) {
            let read = found.right(share_key(key, value, policy).map_err(wrong));
            share.extend(read.map(|read| (key.as_str(), read)));
            continue;
        }
        match options.words(key, value) {
            Ok(words) => _ = arguments.insert(key.as_str(), words),
            Err(Some(what)) => found.add(wrong(what)),
            Err(None) if value.is_table() => found.add(wrong(NO_TABLE.into())),
            Err(None) => found.add(wrong(unknown(key, &[SHARE_KEYS, &options.keys()].concat()))),
        }
    }
    (share, arguments)
}

fn share_key(key: &str, value: &Value, policy: Policy) -> Result<ShareKey, String> {
    match (key, value) {
        ("weight", _) if policy == Policy::Equal => Err(share::EQUAL.into()),
        ("weight", Value::Integer(number)) => share::weight(*number).map(ShareKey::Weight),
        ("class", Value::String(name)) => share::class(name).map(ShareKey::Class),
        ("ceiling", Value::String(text)) => share::ceiling(text).map(ShareKey::Ceiling),
        ("reserved-memory", value) => match room::amount(value)? {
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

/// Shares out what there is for all VMs, if the file says how much that is.
fn share_memory(
    file: &Table,
    key: &'static str,
    own: impl Fn(&Draft<'_>) -> Option<Amount>,
    read: impl Fn(&str) -> Result<Amount, String>,
    vms: &mut [Draft<'_>],
) -> Result<(), Problem> {
    let wrong = |what: &str, why: &str| Problem::of_key("", key, format!("{what} is no size: {why}"));
    let total = match file.get(key) {
        None => return Ok(()),
        Some(Value::Integer(bytes)) if *bytes >= 0 => Amount::Bytes(bytes.unsigned_abs()),
        Some(Value::String(text)) => read(text).map_err(|why| wrong(&format!("\"{text}\""), &why))?,
        Some(other) => {
            return Err(wrong(
                &shown(other),
                "write a whole number of bytes, or a string with KiB, MiB or GiB",
            ));
        }
    };
    let owned: Vec<_> = vms.iter().map(|vm| (vm.name, own(vm))).collect();
    let parts = memory::share_out(key, total, &owned)?;
    for (vm, amount) in vms.iter_mut().zip(parts) {
        if own(vm).is_none() {
            vm.parts.push(format!("--{key}={amount}").into());
        }
    }
    Ok(())
}

/// An option with a path as one word.
pub(super) fn option_with(option: &str, path: &Path) -> OsString {
    let mut word = OsString::from(option);
    word.push("=");
    word.push(path);
    word
}

/// Returns whether a VM may be called so. The name is a part of paths (its control group, its folder below `$STATE_DIRECTORY`), is what operators
/// type, and stands in the log and in metrics.
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
