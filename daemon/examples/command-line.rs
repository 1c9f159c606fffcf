//! Writes the definition of the command line for other programs: a manual page and completions for three shells.
//!
//! `cargo package-deb` runs it with the folder to write into. The daemon does not contain this program.

#[path = "../src/cli/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the command line is described here, and never read")]
mod cli;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// The ways to call the program, in place of a list of all its options.
const SYNOPSIS: &str = r#".SH SYNOPSIS
\fBvhost\-user\-vulkan\fR [\fIOPTIONS\fR] \fB\-\-socket\-path\fR \fIPATH\fR
.br
\fBvhost\-user\-vulkan\fR [\fIOPTIONS\fR] \fB\-\-fd\fR \fIFDNUM\fR
.br
\fBvhost\-user\-vulkan\fR \fB\-\-config\fR \fIFILE\fR [\fB\-\-check\-config\fR]
.br
\fBvhost\-user\-vulkan\fR \fICOMMAND\fR [\fIARGUMENTS\fR]
"#;

/// The sections of the page that do not come from the command line.
const REST: &str = r#".SH FILES
.TP
.I /etc/vhost\-user\-vulkan/vms.toml
The virtual machines of \fBvhost\-user\-vulkan.service\fR; see \fBvhost\-user\-vulkan\-vms.toml\fR(5).
.TP
.I /etc/vhost\-user\-vulkan/NAME.env
Options of \fBvhost\-user\-vulkan@NAME.service\fR, as \fBOPTIONS="..."\fR.
.TP
.I /run/vhost\-user\-vulkan/NAME.sock
The socket to which the virtual machine \fBNAME\fR connects.
.TP
.I /run/vhost\-user\-vulkan/control.sock
The socket of the broker for operators.
.TP
.I /var/lib/vhost\-user\-vulkan/NAME
State of the virtual machine \fBNAME\fR (\fB\-\-state\-dir\fR).
.SH EXIT STATUS
.TP
.B 0
Success; with \fBdoctor\fR, that there is no fault.
.TP
.B 1
Something cannot be done, such as to use a GPU, a socket or a file: the program says what in one line on standard error, before it accepts a
virtual machine. With \fBdoctor\fR, that there is a fault.
.TP
.B 2
The command line is wrong: an option, a value or a subcommand does not exist or is missing.
.TP
.B 75
The daemon has to be started again, since a driver was replaced or its socket file was removed.
.SH SEE ALSO
\fBvhost\-user\-vulkan\-vms.toml\fR(5), \fBqemu\fR(1), \fBsystemctl\fR(1), and the folder \fI/usr/share/doc/vhost\-user\-vulkan\fR
"#;

fn main() -> io::Result<()> {
    let folder =
        std::env::args_os().nth(1).ok_or_else(|| io::Error::other("name the folder to write into"))?;
    let folder = Path::new(&folder);
    fs::create_dir_all(folder.join("man"))?;
    fs::create_dir_all(folder.join("completions"))?;
    let command = cli::Cli::command().disable_help_subcommand(true);
    let mut built = command.clone();
    built.build();
    write_page(&built, &mut File::create(folder.join("man/vhost-user-vulkan.1"))?)?;
    for (shell, file) in [
        (Shell::Bash, "vhost-user-vulkan"),
        (Shell::Zsh, "_vhost-user-vulkan"),
        (Shell::Fish, "vhost-user-vulkan.fish"),
    ] {
        let mut file = File::create(folder.join("completions").join(file))?;
        clap_complete::generate(shell, &mut without_hidden(&command), "vhost-user-vulkan", &mut file);
    }
    Ok(())
}

/// Writes one page, with a section for each command that is not for the daemon itself.
fn write_page(command: &Command, page: &mut impl Write) -> io::Result<()> {
    let man = Man::new(command.clone()).manual("Vhost-user-vulkan");
    man.render_title(page)?;
    man.render_name_section(page)?;
    page.write_all(SYNOPSIS.as_bytes())?;
    man.render_description_section(page)?;
    writeln!(page, ".SH OPTIONS")?;
    for line in rendered(|section| man.render_options_section(section))?.lines() {
        // Each heading of the help is a section of its own; here the headings stand below one section.
        match line.strip_prefix(".SH ") {
            Some(heading) => writeln!(page, ".SS {heading}")?,
            None => writeln!(page, "{line}")?,
        }
    }
    writeln!(page, ".SH COMMANDS")?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        let man = Man::new(inner.clone());
        let section = rendered(|section| {
            man.render_synopsis_section(section)?;
            man.render_description_section(section)?;
            man.render_options_section(section)
        })?;
        writeln!(page, ".SS {}", inner.get_name())?;
        for line in section.lines() {
            match line {
                ".SH SYNOPSIS" => {}
                // The page has no level below the sections of the commands.
                line if line.starts_with(".SH ") => writeln!(page, ".PP")?,
                line => writeln!(page, "{line}")?,
            }
        }
    }
    page.write_all(REST.as_bytes())
}

/// Returns the rendered text.
fn rendered(render: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<String> {
    let mut section = Vec::new();
    render(&mut section)?;
    Ok(String::from_utf8_lossy(&section).into_owned())
}

/// Returns the command without the hidden arguments, which the daemon passes to itself and no user should be offered.
fn without_hidden(command: &Command) -> Command {
    let shown = |inner: &&Command| !inner.is_hide_set();
    let mut result = Command::new("vhost-user-vulkan").version(env!("CARGO_PKG_VERSION"));
    // Help and version are among the arguments already.
    result = result.disable_help_flag(true).disable_version_flag(true);
    result = result.args(command.get_arguments().filter(|argument| !argument.is_hide_set()));
    result.subcommands(command.get_subcommands().filter(shown).cloned())
}
