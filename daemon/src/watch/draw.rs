//! Draws the picture: the broker's status and the operator's choices, on a screen of a given size.

use super::columns::{Room, bar, cells, headings, rooms};
use super::moment::Moment;
use super::screen::{Line, Size, Style, Tone, left, right};
use super::view::View;
use crate::broker::{counted, percent};
use outside::Bytes;

/// The most lines of GPUs.
const GPUS_MAX: usize = 4;
/// The most characters of the bar of a GPU, and the fewest if the memory is shown beside the bar.
const BAR_MAX: usize = 34;
const BAR_MIN: usize = 8;
/// The keys and their effects, the most important first.
const KEYS: [(&str, &str); 7] = [
    ("q", "quit"),
    ("↑↓", "choose"),
    ("Space", "contexts"),
    ("←→", "sort"),
    ("k", "kill"),
    ("r", "reverse"),
    ("a", "all contexts"),
];

/// Returns as many lines as the screen has, each as wide as the screen.
pub(super) fn draw(moment: &Moment, view: &View, size: Size) -> Vec<Line> {
    let rooms = rooms(size.width);
    let mut lines = head(moment, size);
    lines.push(headings(&rooms, view.sorted, view.reversed));
    let height = size.height.saturating_sub(lines.len() + 1);
    lines.extend(rows(moment, view, &rooms, height).into_iter().map(|(line, is_chosen)| {
        let line = line.fitted(size.width);
        if is_chosen { line.reversed() } else { line }
    }));
    lines.truncate(size.height.saturating_sub(1));
    lines.resize_with(size.height.saturating_sub(1), Line::default);
    if size.height > 0 {
        lines.push(foot(view, size.width));
    }
    lines.into_iter().map(|line| line.fitted(size.width)).collect()
}

/// Returns the lines about all VMs: one, and one for each GPU. On a low screen, VMs get the room.
fn head(moment: &Moment, size: Size) -> Vec<Line> {
    let status = &moment.status;
    let mut first = Line::default();
    first.push(&counted(status.vms.iter().map(|vm| vm.state.as_str())), Style::BOLD);
    let pending = status.vms.iter().filter(|vm| vm.pending.is_some()).count();
    if pending > 0 {
        first.push(&format!("   {pending} pending"), Style::toned(Tone::Attention));
    }
    let policy = format!("   policy {}", status.policy);
    if !status.policy.is_empty() && first.width() + policy.chars().count() <= size.width {
        first.push(&policy, Style::toned(Tone::Quiet));
    }
    let mut lines = vec![first];
    let shown = status.gpus.len().min(GPUS_MAX).min(size.height / 4);
    let longest = status.gpus.iter().map(|gpu| gpu.name.chars().count()).max().unwrap_or(0);
    let name_width = longest.min(size.width / 2);
    for gpu in &status.gpus[..shown] {
        let held = status.held_on(gpu).filter(|_| gpu.device_memory > 0);
        let memory = held.map(|held| format!("  {} of {}", Bytes(held), Bytes(gpu.device_memory)));
        let memory =
            memory.filter(|text| name_width + 10 + BAR_MIN + text.len() <= size.width).unwrap_or_default();
        let for_bar = size.width.saturating_sub(name_width + 10 + memory.len()).min(BAR_MAX);
        let mut line = Line::default();
        line.push(&left(&gpu.name, name_width), Style::PLAIN).push("  ", Style::PLAIN);
        line.append(bar(for_bar, gpu.utilisation, None, Style::toned(Tone::Time)));
        line.push(&right(&percent(gpu.utilisation), 7), Style::PLAIN);
        line.push(&memory, Style::toned(Tone::Memory));
        lines.push(line);
    }
    if shown > 0 && shown < status.gpus.len() {
        let mut more = Line::default();
        more.push(&format!("and {} more GPUs", status.gpus.len() - shown), Style::toned(Tone::Quiet));
        lines.push(more);
    }
    if size.height >= 12 {
        lines.push(Line::default());
    }
    lines
}

/// Returns the rows that fit, the chosen one among them, each with whether it is the chosen one.
fn rows(moment: &Moment, view: &View, rooms: &[Room], height: usize) -> Vec<(Line, bool)> {
    let rows = view.rows(moment);
    let chosen = rows.iter().position(|row| Some(&row.id) == view.chosen.as_ref());
    // The chosen row stays in the middle if not all rows fit.
    let first = chosen.unwrap_or(0).saturating_sub(height / 2).min(rows.len().saturating_sub(height));
    let shown = rows.iter().enumerate().skip(first).take(height);
    shown.map(|(at, row)| (cells(rooms, row), Some(at) == chosen)).collect()
}

/// The last line: a question, a notice, or the effects of keys.
fn foot(view: &View, width: usize) -> Line {
    let mut line = Line::default();
    if let Some(asked) = &view.question {
        let question = format!("Kill {}/{} {}? ", asked.vm, asked.context, asked.program);
        let style = Style { bold: true, ..Style::toned(Tone::Attention) };
        // The possible answers have to be visible in any case.
        let answers = "y/n";
        let room = width.saturating_sub(answers.len() + 1);
        line.push(left(&question, room.min(question.chars().count())).trim_end(), style);
        line.push(" ", Style::PLAIN).push(answers, style);
        if width > line.width() + 40 {
            line.push("   Its program will see a lost device.", Style::toned(Tone::Quiet));
        }
        return line;
    }
    if !view.notice.is_empty() {
        line.push(&view.notice, Style::BOLD);
        return line;
    }
    for (key, does) in KEYS {
        let needed = key.chars().count() + does.chars().count() + 1 + 3;
        if line.width() + needed > width + 3 {
            break;
        }
        line.push(key, Style::BOLD).push(&format!(" {does}   "), Style::toned(Tone::Quiet));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::moment::Id;
    use super::super::moment::tests::status;
    use super::super::view::Question;
    use super::*;
    use crate::broker::{ContextStatus, PendingStatus, Status, VmStatus};

    fn text(status: Status, view: &mut View, width: usize, height: usize) -> Vec<String> {
        let moment = Moment::new(status, None);
        view.settle(&moment);
        let lines: Vec<_> =
            draw(&moment, view, Size { width, height }).iter().map(|line| line.text()).collect();
        println!("{}", lines.join("\n"));
        lines
    }

    #[test]
    fn the_picture_has_the_size_of_the_screen() {
        for width in [0, 1, 7, 39, 40, 80, 200] {
            for height in [0, 1, 2, 5, 24] {
                let moment = Moment::new(status(), None);
                let lines = draw(&moment, &View::default(), Size { width, height });
                assert_eq!(lines.len(), height, "{width}x{height}");
                assert!(lines.iter().all(|line| line.width() == width), "{width}x{height}: {lines:?}");
            }
        }
    }

    #[test]
    fn eighty_columns_show_the_head_the_vms_and_the_keys() {
        let mut view = View::default();
        view.unfolded.insert("web".into());
        let lines = text(status(), &mut view, 80, 14);
        assert_eq!(lines[0].trim_end(), "3 VMs: 3 connected   policy best-effort");
        assert!(lines[1].starts_with("A GPU ") && lines[1].contains(" 87.5%"), "{}", lines[1]);
        assert!(lines[1].trim_end().ends_with("87.5%  9.0GiB of 80.0GiB"), "{}", lines[1]);
        let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[3], ["VM▲", "STATE", "SHARE", "OF", "GPU", "DEVICE", "MEM", "WAITING", "QUEUE"]);
        assert_eq!(words[4][..2], ["nightly", "connected"]);
        assert_eq!(words[5][..2], ["training", "connected"]);
        assert!(words[5][2].contains('┃'), "the training VM is entitled to something: {}", lines[5]);
        assert!(!words[4][2].contains('┃'), "a VM in the background is not: {}", lines[4]);
        assert_eq!(words[6][..3], ["▾", "web", "connected"]);
        assert_eq!(words[7][..3], ["3", "llama-ser…", "running"]);
        assert!(lines[13].starts_with("q quit   ↑↓ choose"), "{}", lines[13]);
    }

    #[test]
    fn vms_of_which_something_waits_until_they_are_off_are_counted() {
        let mut status = status();
        status.vms[0].pending = Some(PendingStatus::Removal);
        let lines = text(status, &mut View::default(), 80, 14);
        assert_eq!(lines[0].trim_end(), "3 VMs: 3 connected   1 pending   policy best-effort");
    }

    #[test]
    fn the_row_that_is_chosen_is_reversed_and_always_there() {
        let vms = (0..100).map(|n| VmStatus { name: format!("vm-{n:02}"), ..VmStatus::default() }).collect();
        let moment = Moment::new(Status { vms, ..Status::default() }, None);
        for chosen in [0, 1, 50, 98, 99] {
            let view = View { chosen: Some(Id::Vm(format!("vm-{chosen:02}"))), ..View::default() };
            let lines = draw(&moment, &view, Size { width: 60, height: 10 });
            let reversed: Vec<_> =
                lines.iter().filter(|line| line.spans.iter().any(|span| span.style.reversed)).collect();
            assert_eq!(reversed.len(), 1);
            assert!(reversed[0].text().contains(&format!("vm-{chosen:02}")), "{chosen}");
        }
    }

    #[test]
    fn a_question_shows_its_answers_however_long_the_program_is_called() {
        let question = Question { vm: "web".into(), context: 3, program: "x".repeat(64) };
        let view = View { question: Some(question), ..View::default() };
        for width in [20, 40, 200] {
            let foot = foot(&view, width).fitted(width).text();
            assert!(foot.starts_with("Kill web/3 x") && foot.contains(" y/n"), "{foot}");
        }
    }

    #[test]
    fn nothing_that_others_named_commands_the_terminal() {
        let mut status = status();
        let evil = "a\u{1b}[2J\u{9b}31m\u{7}\r\n\u{202e}b";
        status.gpus[0].name = evil.into();
        status.policy = evil.into();
        for vm in &mut status.vms {
            (vm.name, vm.state, vm.class) = (evil.into(), evil.into(), evil.into());
            vm.contexts.push(ContextStatus { name: evil.into(), state: evil.into(), ..Default::default() });
        }
        let question = Question { vm: evil.into(), context: 0, program: evil.into() };
        for question in [None, Some(question)] {
            let unfolded = [evil.to_owned()].into();
            let mut view = View { unfolded, question, notice: evil.into(), ..View::default() };
            let moment = Moment::new(status.clone(), None);
            for _ in 0..2 {
                let lines = draw(&moment, &view, Size { width: 200, height: 24 });
                let all: String = lines.iter().map(Line::text).collect();
                assert!(!all.contains(|c: char| c.is_control() || c == '\u{202e}'), "{all:?}");
                view.notice.clear();
            }
        }
    }
}
