//! A check of `docs/features.md`: the page names each difference between guest and host that a guest sees.

use anyhow::{Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use tests::clients::Setup;
use tests::packages::{ClientRoot, Suite};
use tests::program::{LIMIT, succeed};

const DOCUMENT: &str = include_str!("../../../docs/features.md");

/// The properties of a device, as vulkaninfo prints them.
#[derive(Default)]
struct Device {
    extensions: BTreeSet<String>,
    /// By section and name.
    values: BTreeMap<(String, String), String>,
}

impl Device {
    fn parse(text: &str) -> Self {
        let (mut device, mut section) = (Self::default(), "");
        let text = text.split_once("Device Properties and Extensions").map_or("", |(_, devices)| devices);
        for line in text.lines() {
            let words = line.trim();
            if let Some(name) = words.strip_suffix(':').filter(|name| name.starts_with("Vk")) {
                section = name;
            } else if words.starts_with("VK_") && words.contains(": extension revision") {
                device.extensions.extend(words.split_whitespace().next().map(str::to_owned));
            } else if let Some((name, value)) = words.split_once('=').filter(|(name, _)| !name.contains(':'))
            {
                let key = (section.to_owned(), name.trim().to_owned());
                device.values.entry(key).or_insert_with(|| value.trim().to_owned());
            }
        }
        device
    }
}

/// Names the document explains, those that end in `*` apart.
fn explained() -> (BTreeSet<&'static str>, Vec<String>) {
    let explained = DOCUMENT.split_once("Of these").map_or("", |(_, absent)| absent);
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '*' || c == '\\';
    let words = explained.split(move |c| !is_word(c)).collect::<BTreeSet<_>>();
    let patterns = words.iter().filter_map(|word| word.strip_suffix("\\*").map(str::to_owned)).collect();
    (words, patterns)
}

#[test]
fn what_differs_from_the_host_is_documented() -> Result<()> {
    let setup = Setup::start()?;
    let host = Device::parse(&succeed(ClientRoot::open(Suite::Testing)?.native("vulkaninfo")?, LIMIT)?);
    ensure!(host.extensions.len() > 100 && host.values.len() > 500, "vulkaninfo's output is not understood");
    let (absent, patterns) = explained();
    let named: BTreeSet<&str> = DOCUMENT.split(|c: char| !c.is_alphanumeric()).collect();
    for suite in [Suite::Testing, Suite::Unstable] {
        let client = ClientRoot::open(suite)?;
        let guest = Device::parse(&succeed(client.through_vtest("vulkaninfo", setup.socket())?, LIMIT)?);
        let is_explained = |name: &&String| {
            absent.contains(name.as_str()) || patterns.iter().any(|prefix| name.starts_with(prefix))
        };
        let missing: Vec<_> = host.extensions.difference(&guest.extensions).collect();
        let unexplained: Vec<_> = missing.iter().filter(|name| !is_explained(name)).collect();
        println!("{suite:?}: {} of {} extensions are missing", missing.len(), host.extensions.len());
        ensure!(unexplained.is_empty(), "{suite:?}: {unexplained:?} are not in docs/features.md");
        let shared = host.values.iter().filter_map(|(key, value)| Some((key, value, guest.values.get(key)?)));
        let differing: Vec<_> = shared.filter(|(_, expected, found)| expected != found).collect();
        let unnamed: Vec<_> =
            differing.iter().filter(|((_, name), ..)| !named.contains(name.as_str())).collect();
        println!("{suite:?}: {} values differ", differing.len());
        ensure!(unnamed.is_empty(), "{suite:?}: {unnamed:#?} are not in docs/features.md");
        let features = |device: &Device| {
            let sections = device.values.keys().map(|(section, _)| section.clone());
            sections
                .filter(|section| section.contains("Vulkan1") || section.ends_with("Limits"))
                .collect::<BTreeSet<_>>()
        };
        ensure!(features(&host) == features(&guest), "{suite:?}: a core structure is missing");
    }
    setup.settle().map(drop)
}
