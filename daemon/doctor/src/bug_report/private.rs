//! The replacement of parts of a text that identify the machine's owner: names of the host and of its users, addresses of networks, and identifiers
//! such as UUIDs. Each gets a number, so that a reader can tell two of a kind apart. PCI addresses stay, because all machines have the same ones.

use crate::system::System;
use std::net::IpAddr;

/// The numbers of users that are people (login.defs(5): `UID_MIN` and `UID_MAX`).
const PEOPLE: std::ops::RangeInclusive<u32> = 1000..=60_000;
/// The folder of most users' homes.
const HOMES: &str = "/home/";
/// The shortest name that is replaced: letters alone name no person.
const NAME_MIN: usize = 2;

/// The kinds of text that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Host,
    User,
    Home,
    Address,
    Identifier,
}

/// The names of a system's host and users, and the texts that have been replaced so far.
#[derive(Debug)]
pub(super) struct Private {
    /// The names, longest first.
    names: Vec<(String, Kind)>,
    /// The values that have been replaced, each numbered by its place.
    replaced: Vec<(String, Kind)>,
}

impl Private {
    /// Gathers the names of the host and its users.
    pub(super) fn of(system: &System) -> Self {
        let mut names = Vec::new();
        for file in ["/etc/hostname", "/proc/sys/kernel/hostname"] {
            let name = system.read(file).unwrap_or_default();
            names.extend(name.split('.').next().map(|first| (first.to_owned(), Kind::Host)));
            names.push((name, Kind::Host));
        }
        for line in system.read("/etc/passwd").unwrap_or_default().lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, number, _, _, home, ..] = fields[..] else { continue };
            if number.parse().is_ok_and(|number| PEOPLE.contains(&number)) {
                names.extend([(name.to_owned(), Kind::User), (home.to_owned(), Kind::Home)]);
            }
        }
        let variables = ["USER", "LOGNAME", "SUDO_USER"].into_iter().filter_map(|name| system.variable(name));
        names.extend(variables.map(|name| (name.to_owned(), Kind::User)));
        names.retain(|(name, _)| {
            name.len() >= NAME_MIN && !["root", "localhost", "nobody"].contains(&name.as_str())
        });
        // The names of their users tell the usual homes apart.
        names.retain(|(name, kind)| *kind != Kind::Home || !name.starts_with(HOMES));
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self { names, replaced: Vec::new() }
    }

    /// Returns a text with these parts replaced.
    pub(super) fn without(&mut self, text: &str) -> String {
        let (mut out, mut rest, mut before) = (String::with_capacity(text.len()), text, ' ');
        while let Some(c) = rest.chars().next() {
            let found = match before {
                _ if is_word(before) && is_word(c) => None,
                '/' if out.ends_with(HOMES) => {
                    Some((name_length(rest), Kind::User)).filter(|(length, _)| *length > 0)
                }
                _ => self.find(before, rest),
            };
            let taken = match found {
                Some((length, kind)) => {
                    out += &self.label(&rest[..length], kind);
                    length
                }
                None => {
                    out.push(c);
                    c.len_utf8()
                }
            };
            before = rest[..taken].chars().next_back().unwrap_or(c);
            rest = &rest[taken..];
        }
        out
    }

    /// Returns the length and the kind of the private text at the beginning of `rest`, if any.
    fn find(&self, before: char, rest: &str) -> Option<(usize, Kind)> {
        let ends = |length: usize| !rest[length..].starts_with(is_word);
        let is_named = |(name, _): &&(String, Kind)| rest.starts_with(name.as_str()) && ends(name.len());
        if let Some((name, kind)) = self.names.iter().find(is_named) {
            return Some((name.len(), *kind));
        }
        let identifier = || identifier(rest).map(|length| (length, Kind::Identifier));
        let address = || address(rest).map(|length| (length, Kind::Address));
        // A path of code may continue like an address.
        let found = if is_word(before) { None } else { identifier().or_else(address) };
        found.filter(|(length, _)| ends(*length))
    }

    fn label(&mut self, value: &str, kind: Kind) -> String {
        let is_it = |known: &(String, Kind)| known.1 == kind && known.0 == value;
        if !self.replaced.iter().any(is_it) {
            self.replaced.push((value.to_owned(), kind));
        }
        let of_kind = self.replaced.iter().filter(|known| known.1 == kind);
        let number = of_kind.take_while(|known| known.0 != value).count() + 1;
        let word = match kind {
            Kind::Host => "host",
            Kind::User => "user",
            Kind::Home => "home",
            Kind::Address => "address",
            Kind::Identifier => "identifier",
        };
        format!("<{word} {number}>")
    }
}

/// Returns whether a name or a number goes on with this character.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length in bytes of the folder name at the beginning of a text.
fn name_length(text: &str) -> usize {
    text.find(|c: char| !is_word(c) && !"-.".contains(c)).unwrap_or(text.len())
}

/// The forms of identifiers: the hexadecimal digits of each group, and the separator of the groups. UUIDs, with dashes or without, and addresses of
/// network cards.
const FORMS: [(&[usize], u8); 4] =
    [(&[8, 4, 4, 4, 12], b'-'), (&[32], b'-'), (&[2; 6], b':'), (&[2; 6], b'-')];

/// Returns the length in bytes of an identifier at the beginning of a text.
fn identifier(text: &str) -> Option<usize> {
    FORMS.iter().find_map(|(groups, between)| grouped(text.as_bytes(), groups, *between))
}

fn grouped(text: &[u8], groups: &[usize], between: u8) -> Option<usize> {
    let mut at = 0;
    for (number, digits) in groups.iter().enumerate() {
        if number > 0 {
            text.get(at).filter(|byte| **byte == between)?;
            at += 1;
        }
        let group = text.get(at..at + digits)?;
        at += digits;
        group.iter().all(u8::is_ascii_hexdigit).then_some(())?;
    }
    Some(at)
}

/// Returns the length in bytes of a network address at the beginning of a text, without the port. Loopback and unspecified addresses do not count.
fn address(text: &str) -> Option<usize> {
    let is_part = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
    let run = &text[..text.find(|c: char| !is_part(c)).unwrap_or(text.len())];
    let parts = [run, run.trim_end_matches([':', '.']), run.split(':').next().unwrap_or_default()];
    parts.into_iter().find_map(|part| {
        let address: IpAddr = part.parse().ok()?;
        (!address.is_loopback() && !address.is_unspecified()).then_some(part.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::made::put;

    fn private() -> Private {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| put(root.path(), path, text);
        put("etc/hostname", "tower.example.org\n");
        put(
            "etc/passwd",
            "root:x:0:0::/root:/bin/sh\nkvm:x:107:107::/:/bin/false\nbob:x:1000:1000::/srv/b:/bin/sh\n",
        );
        Private::of(&System::below(root.path()).without_variables().with("SUDO_USER", "eve"))
    }

    #[test]
    fn names_addresses_and_identifiers_are_replaced() {
        for (text, expected) in [
            ("tower tower.example.org Tower towers", "<host 1> <host 2> Tower towers"),
            ("bob's /srv/b/x of eve, bobby", "<user 1>'s <home 1>/x of <user 2>, bobby"),
            ("--state-dir=/home/ann-1/x, /home/bob", "--state-dir=/home/<user 1>/x, /home/<user 2>"),
            ("10.1.2.3:80 10.1.2.3. 10.1.2.4/24", "<address 1>:80 <address 1>. <address 2>/24"),
            ("[fe80::1]:80 2001:db8:: x", "[<address 1>]:80 <address 2> x"),
            ("at 02:42:ac:11:00:02, 02-42-ac-11-00-02", "at <identifier 1>, <identifier 2>"),
            ("GPU-01020304-0506-0708-090a-0b0c0d0e0f10", "GPU-<identifier 1>"),
            ("01020304050607080910111213141516 x", "<identifier 1> x"),
        ] {
            assert_eq!(private().without(text), expected);
        }
    }

    #[test]
    fn what_is_of_no_machine_stays() {
        for text in [
            "2026-11-27T17:39:22+0000 vhost-user-vulkan[12]: serve::abc daemon::beef ::",
            "0000:01:00.0 127.0.0.1:9400 [::1]:9400 0.0.0.0 580.95.05 25.0.7-2+deb13u1 1.2.3",
            "root kvm localhost /root /home/ 5a4f6c7d8e9f a6c1e2 é 0102030405060708091011121314151617",
        ] {
            assert_eq!(private().without(text), text);
        }
    }
}
