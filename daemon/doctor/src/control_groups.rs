//! Control groups of version 2, as the kernel shows them to a process: its group, and the mount that shows the group (proc(5), kernel:
//! `admin-guide/cgroup-v2.rst`). This module works on the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`, and reads no file.

use std::path::{Path, PathBuf};

/// The folder where systems mount control groups; hybrid systems mount the groups of version 2 in a folder below.
const USUAL: &str = "/sys/fs/cgroup";

/// A mount of control groups of version 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The folder where the groups are mounted.
    pub folder: PathBuf,
    /// The group that the folder shows: `/`, or another one if only a part is mounted there.
    group: PathBuf,
}

/// Returns the group of a process, given its `/proc/PID/cgroup`. A name with `..` names a group outside of the cgroup namespace.
#[must_use]
pub fn group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

impl Mount {
    /// Returns the mount that shows `group` to a process with these mounts: among several, as in the folder of a chroot, the mount
    /// at the usual place.
    #[must_use]
    pub fn of(group: &str, mounts: &str) -> Option<Self> {
        let mounts: Vec<Line<'_>> = mounts.lines().filter_map(Line::read).collect();
        // The parent of a later mount at the same place is the mount below.
        let is_covered = |line: &Line<'_>| {
            mounts.iter().any(|above| above.parent == line.number && above.folder == line.folder)
        };
        let shown = mounts.iter().filter(|line| line.is_of_version_2 && !is_covered(line));
        let mounts = shown.map(|line| Self { folder: line.folder.into(), group: line.root.into() });
        mounts.filter(|mount| mount.folder_of(group).is_some()).min_by_key(|mount| {
            let usual = mount.folder.strip_prefix(USUAL);
            usual.map_or(usize::MAX, |below| below.components().count())
        })
    }

    /// Returns the folder of a group, if the mount shows it.
    #[must_use]
    pub fn folder_of(&self, group: &str) -> Option<PathBuf> {
        let below = Path::new(group).strip_prefix(&self.group).ok()?;
        (!group.contains("/..")).then(|| self.folder.join(below).components().collect())
    }
}

/// A line of `mountinfo`.
struct Line<'a> {
    number: &'a str,
    parent: &'a str,
    root: &'a str,
    folder: &'a str,
    is_of_version_2: bool,
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let (number, parent) = (fields.next()?, fields.next()?);
        let (root, folder) = (fields.nth(1)?, fields.next()?);
        Some(Self { number, parent, root, folder, is_of_version_2: kind.starts_with("cgroup2 ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "24 1 0:21 / /proc rw - proc proc rw\n\
                         31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                          39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                          41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    /// Returns the folder of a group.
    fn folder(group: &str, mounts: &str) -> Option<String> {
        Some(Mount::of(group, mounts)?.folder_of(group)?.display().to_string())
    }

    #[test]
    fn a_group_is_found_below_what_is_mounted_of_it() {
        let unit = "/system.slice/gpu.service";
        assert_eq!(folder(unit, PLAIN).as_deref(), Some("/sys/fs/cgroup/system.slice/gpu.service"));
        assert_eq!(folder("/", PLAIN).as_deref(), Some("/sys/fs/cgroup"));
        assert_eq!(folder("/../other", PLAIN), None);
        assert_eq!(folder(unit, HYBRID).as_deref(), Some("/sys/fs/cgroup/unified/system.slice/gpu.service"));
        assert_eq!(folder("/a", "31 23 0:26 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids"), None);
        assert_eq!(folder("/a", ""), None);
        let elsewhere = "31 23 0:26 / /cgroup rw - cgroup2 none rw";
        assert_eq!(folder("/a", elsewhere).as_deref(), Some("/cgroup/a"));
    }

    #[test]
    fn a_second_mount_of_the_same_groups_is_not_the_systems() {
        for (system, place, second) in [
            (PLAIN, "/sys/fs/cgroup/a", "91 90 0:26 / /srv/build/sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            (
                HYBRID,
                "/sys/fs/cgroup/unified/a",
                "91 90 0:38 / /srv/build/sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            ),
        ] {
            for mounts in [format!("{second}{system}"), format!("{system}{second}")] {
                assert_eq!(folder("/a", &mounts).as_deref(), Some(place), "{mounts}");
            }
        }
    }

    #[test]
    fn a_mount_of_a_part_shows_the_groups_of_that_part() {
        let part = "91 90 0:26 /pod/a /srv/part rw - cgroup2 none rw\n";
        assert_eq!(folder("/pod/a/b", part).as_deref(), Some("/srv/part/b"));
        assert_eq!(folder("/pod/a", part).as_deref(), Some("/srv/part"));
        assert_eq!(folder("/pod/ab", part), None);
        assert_eq!(folder("/", part), None);
        for mounts in [format!("{part}{PLAIN}"), format!("{PLAIN}{part}")] {
            assert_eq!(folder("/pod/a/b", &mounts).as_deref(), Some("/sys/fs/cgroup/pod/a/b"));
        }
        // The mounts of a container without a cgroup namespace.
        let container = "31 23 0:26 /pod/a /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(folder("/pod/a", container).as_deref(), Some("/sys/fs/cgroup"));
        assert_eq!(folder("/pod/b", container), None);
    }

    #[test]
    fn a_namespace_of_groups_hides_what_is_above_its_root() {
        // The host's groups, mounted into the container, begin above the root of the namespace.
        let host = "80 79 0:26 /../.. /host/sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        let own = "31 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        for mounts in [format!("{host}{own}"), format!("{own}{host}")] {
            assert_eq!(folder("/", &mounts).as_deref(), Some("/sys/fs/cgroup"));
            assert_eq!(folder("/a", &mounts).as_deref(), Some("/sys/fs/cgroup/a"));
        }
        assert_eq!(folder("/", host), None);
    }

    #[test]
    fn the_uppermost_mount_of_a_place_is_seen() {
        let below = "31 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let above = "50 31 0:26 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        for mounts in [format!("{below}{above}"), format!("{above}{below}")] {
            assert_eq!(folder("/pod/a", &mounts).as_deref(), Some("/sys/fs/cgroup/a"));
        }
        let hidden = format!("{below}50 31 0:40 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n");
        assert_eq!(folder("/a", &hidden), None);
        let unified = format!("{hidden}51 50 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        assert_eq!(folder("/a", &unified).as_deref(), Some("/sys/fs/cgroup/unified/a"));
    }

    #[test]
    fn the_group_of_version_2_is_the_one_without_controllers() {
        assert_eq!(group("4:memory:/x\n0::/a/b\n"), Some("/a/b"));
        assert_eq!(group("4:memory:/x\n"), None);
    }
}
