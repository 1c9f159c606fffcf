//! The pages and completions that describe the program: made of the definition of the command line, and of the page about the VMs' file.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::names::NAME;
use crate::daemon_process::build_example;
use crate::program::{LIMIT, succeed};

/// The sections of `docs/sharing.md` that the page about the file consists of, in this order.
const SECTIONS: &[&str] = &["The file", "An example", "Several GPUs for one VM", "Memory and threads"];

/// Writes `man` and `completions` below the folder.
///
/// # Errors
/// A program is missing or fails.
pub(super) fn write(folder: &Path) -> Result<()> {
    let mut program = Command::new(build_example("command-line")?);
    program.arg(folder);
    succeed(program, LIMIT)?;
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sharing.md");
    let guide = fs::read_to_string(guide).context("reading docs/sharing.md")?;
    let page = folder.join("man").join(format!("{NAME}-vms.toml.5"));
    Ok(fs::write(page, manual_page(&page_of_the_file(&guide)?)?)?)
}

/// The text of the page, in Markdown.
fn page_of_the_file(guide: &str) -> Result<String> {
    let mut page = format!("# Name\n\n{NAME}-vms.toml - virtual machines that share GPUs\n");
    page += "\n# Synopsis\n\n/etc/vhost-user-vulkan/vms.toml\n";
    for &name in SECTIONS {
        let section =
            section(guide, name).with_context(|| format!("docs/sharing.md has no section {name:?}"))?;
        let name = if name == "The file" { "Description" } else { name };
        // Below the page's own heads, which are of the first level.
        page += &format!("\n# {name}\n{}", section.replace("\n### ", "\n## "));
    }
    page += &format!("\n# See also\n\n**{NAME}**(1), **systemd.resource-control**(5)\n");
    Ok(page)
}

/// Returns the text below a head of the second level.
fn section<'a>(guide: &'a str, name: &str) -> Option<&'a str> {
    let rest = guide.split_once(&format!("\n## {name}\n"))?.1;
    Some(rest.split_once("\n## ").map_or(rest, |(section, _)| section))
}

/// Makes a manual page of Markdown.
fn manual_page(text: &str) -> Result<String> {
    let mut command = Command::new("lowdown");
    command.args(["-s", "-tman", "--nroff-nolinks", "-M"]).arg(format!("title={NAME}-vms.toml"));
    command.args(["-M", "section=5", "-M", "source=vhost-user-vulkan", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child =
        command.spawn().context("lowdown is missing; install with: sudo apt-get install lowdown")?;
    child.stdin.take().context("stdin is piped")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "lowdown failed");
    // Tables need tbl, which the first line asks for. Their cells are too narrow to be filled to both edges. Words to type are bold, since not every
    // terminal has the font that older versions of lowdown name.
    let page = String::from_utf8(output.stdout)?.replace("\n.TS\n", "\n.ad l\n.TS\n").replace(r"\fC", r"\fB");
    Ok(format!("'\\\" t\n{page}"))
}

#[cfg(test)]
mod tests {
    use super::section;

    #[test]
    fn a_section_ends_where_the_next_begins() {
        let guide = "# a\n\n## b\n\ntext\n### c\nmore\n## d\nlast\n";
        assert_eq!(section(guide, "b"), Some("\ntext\n### c\nmore"));
        assert_eq!((section(guide, "d"), section(guide, "c")), (Some("last\n"), None));
    }
}
