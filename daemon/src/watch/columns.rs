//! The columns that fit into a width, and their contents.

use super::moment::{Column, Id, Memory, Row};
use super::screen::{Line, Style, Tone, left, right};
use crate::broker::percent;
use outside::Bytes;

/// A column and the width that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) column: Column,
    pub(super) width: usize,
}

/// Characters between two columns.
const GAP: usize = 2;
/// Characters of a percentage.
const PERCENT: usize = 6;
/// Characters of a number of bytes.
const BYTES: usize = 9;
/// Characters of a number of bytes and its bound.
const OF_BYTES: usize = 2 * BYTES + 4;
/// Characters of the shortest bar.
const BAR: usize = 8;

/// A column, and three widths: the least, the one that suits it, and the most that it can use.
struct Need(Column, usize, usize, usize);

/// The columns by their importance.
const IMPORTANT: [Need; 11] = [
    Need(Column::Name, 12, 18, 36),
    Need(Column::Share, BAR + 1 + PERCENT, 20, 34),
    Need(Column::DeviceMemory, BYTES, BAR + 1 + OF_BYTES, 44),
    Need(Column::State, 9, 9, 9),
    Need(Column::Waiting, 8, 8, 8),
    Need(Column::Queue, 6, 6, 6),
    Need(Column::Weight, 7, 7, 7),
    Need(Column::HostMemory, 10, 10, 40),
    Need(Column::Class, 16, 16, 16),
    Need(Column::Contexts, 9, 9, 9),
    Need(Column::Kills, 6, 6, 6),
];
/// The width from which names get more room, and device memory gets a bar beside the number.
const ROOMY: usize = 60;

/// Returns the columns that fit, from left to right.
pub(super) fn rooms(width: usize) -> Vec<Room> {
    let mut rooms: Vec<(Room, &Need)> = Vec::new();
    let mut left = width;
    for need @ Need(column, least, ..) in &IMPORTANT {
        let least = match column {
            Column::Name if width >= ROOMY => least + 2,
            Column::DeviceMemory if width >= ROOMY => BAR + 1 + BYTES,
            _ => *least,
        };
        let needed = least + if rooms.is_empty() { 0 } else { GAP };
        if needed <= left {
            left -= needed;
            rooms.push((Room { column: *column, width: least }, need));
        }
    }
    grow(&mut rooms, &mut left, |Need(_, _, good, _)| *good);
    grow(&mut rooms, &mut left, |Need(.., most)| *most);
    let place = |room: &Room| Column::ALL.iter().position(|column| *column == room.column);
    let mut rooms: Vec<Room> = rooms.into_iter().map(|(room, _)| room).collect();
    rooms.sort_by_key(place);
    rooms
}

/// Makes columns wider in turn, up to the width `to` of each, as far as `left` lasts.
fn grow(rooms: &mut [(Room, &Need)], left: &mut usize, to: fn(&Need) -> usize) {
    let mut grows = true;
    while grows {
        grows = false;
        for (room, need) in &mut *rooms {
            if *left > 0 && room.width < to(need) {
                (room.width, *left, grows) = (room.width + 1, *left - 1, true);
            }
        }
    }
}

/// Returns the line of headings. The column by which rows are sorted has an arrow.
pub(super) fn headings(rooms: &[Room], sorted: Column, reversed: bool) -> Line {
    let heading = |room: &Room| {
        let arrow = match (room.column == sorted, room.column.has_words() != reversed) {
            (false, _) => "",
            (true, true) => "▲",
            (true, false) => "▼",
        };
        let text = format!("{}{arrow}", title(*room));
        let style = Style { bold: room.column == sorted, ..Style::toned(Tone::Quiet) };
        let mut cell = Line::default();
        let fitted = if room.column.has_words() { left(&text, room.width) } else { right(&text, room.width) };
        cell.push(&fitted, style);
        cell
    };
    beside(rooms.iter().map(heading))
}

/// Returns the line of a row.
pub(super) fn cells(rooms: &[Room], row: &Row) -> Line {
    beside(rooms.iter().map(|room| cell(*room, row)))
}

fn beside(cells: impl Iterator<Item = Line>) -> Line {
    let mut line = Line::default();
    for (at, cell) in cells.enumerate() {
        line.push(if at == 0 { "" } else { "  " }, Style::PLAIN).append(cell);
    }
    line
}

fn title(room: Room) -> &'static str {
    match room.column {
        Column::Name => "VM",
        Column::State => "STATE",
        Column::Class => "CLASS",
        Column::Weight => "WEIGHT",
        Column::Share => "SHARE OF GPU",
        Column::DeviceMemory if room.width > 10 => "DEVICE MEM",
        Column::DeviceMemory => "DEV MEM",
        Column::HostMemory => "HOST MEM",
        Column::Waiting => "WAITING",
        Column::Queue => "QUEUE",
        Column::Contexts => "CONTEXTS",
        Column::Kills => "KILLS",
    }
}

fn cell(Room { column, width }: Room, row: &Row) -> Line {
    let mut line = Line::default();
    let number = |number: Option<u64>| right(&number.map(|n| n.to_string()).unwrap_or_default(), width);
    match column {
        Column::Name => line.push(&left(&name(row), width), Style { bold: row.vm.is_some(), ..Style::PLAIN }),
        Column::State => line.push(&left(&row.state, width), of_state(&row.state)),
        Column::Class => line.push(&left(&row.class, width), Style::PLAIN),
        Column::Weight => line.push(&number(row.vm.map(|vm| vm.weight.into())), Style::PLAIN),
        Column::Share => {
            let (gpus, bar_width) = (row.gpus as f64, width.saturating_sub(PERCENT + 1));
            let mark = row.entitled.map(|part| part / gpus);
            line.append(bar(bar_width, row.share / gpus, mark, Style::toned(Tone::Time)));
            line.push(&right(&percent(row.share), PERCENT + 1), Style::PLAIN)
        }
        Column::DeviceMemory => line.append(memory(row.device_memory, width)),
        Column::HostMemory => line.append(memory(row.host_memory, width)),
        Column::Waiting => {
            let part = row.waiting.map(|part| format!("{:.0}%", part * 100.0)).unwrap_or_default();
            line.push(&right(&part, width), Style::PLAIN)
        }
        Column::Queue => line.push(&number(Some(row.queued.into())), Style::PLAIN),
        Column::Contexts => line.push(&number(row.vm.map(|vm| vm.contexts as u64)), Style::PLAIN),
        Column::Kills => line.push(&number(row.vm.map(|vm| vm.kills)), Style::PLAIN),
    };
    line
}

/// Returns the name of a VM, after the sign that says whether its contexts are shown, or the name of a program, after the number of its context.
fn name(row: &Row) -> String {
    match (row.vm, &row.id) {
        (Some(vm), _) if vm.contexts == 0 => format!("  {}", row.name),
        (Some(vm), _) => format!("{} {}", if vm.is_unfolded { "▾" } else { "▸" }, row.name),
        (None, Id::Context(_, number)) => format!("  {number} {}", row.name),
        (None, Id::Vm(_)) => row.name.clone(),
    }
}

fn of_state(state: &str) -> Style {
    Style::toned(match state {
        "ended" | "ending" | "starting" => Tone::Attention,
        "connected" | "running" | "alone" => Tone::Plain,
        _ => Tone::Quiet,
    })
}

/// Returns the held memory and its bound in words, after a bar if the memory has a bound and the column has room.
fn memory(memory: Memory, width: usize) -> Line {
    let held = Bytes(memory.held).to_string();
    let both = memory.limit.map(|limit| format!("{held} of {}", Bytes(limit)));
    let (text, of_text) = match both {
        Some(both) if width > OF_BYTES + BAR => (both, OF_BYTES),
        _ if width > BYTES + BAR => (held, BYTES),
        _ => (held, width),
    };
    let mut line = Line::default();
    let for_bar = width - of_text;
    match memory.limit {
        Some(limit) if for_bar > 0 => {
            let part = memory.held as f64 / limit.max(1) as f64;
            let tone = if part > 0.9 { Tone::Attention } else { Tone::Memory };
            line.append(bar(for_bar - 1, part, None, Style::toned(tone))).push(" ", Style::PLAIN);
        }
        _ => _ = line.push(&" ".repeat(for_bar), Style::PLAIN),
    }
    line.push(&right(&text, of_text), Style::PLAIN);
    line
}

/// Returns a bar that is full up to `part`, from 0 to 1, with a mark at another part.
pub(super) fn bar(width: usize, part: f64, mark: Option<f64>, style: Style) -> Line {
    let halves = (part.clamp(0.0, 1.0) * width as f64 * 2.0).round() as usize;
    // A part above 0 is shown as at least one half.
    let halves = if part > 0.0 { halves.max(1) } else { halves };
    let mark = mark.map(|mark| ((mark.clamp(0.0, 1.0) * width as f64) as usize).min(width.saturating_sub(1)));
    let mut line = Line::default();
    let mut append = |text: &str, style: Style| match line.spans.last_mut() {
        Some(last) if last.style == style => last.text.push_str(text),
        _ => _ = line.push(text, style),
    };
    for at in 0..width {
        match halves.saturating_sub(at * 2) {
            _ if mark == Some(at) => append("┃", Style::BOLD),
            0 => append("─", Style::toned(Tone::Quiet)),
            1 => append("╸", style),
            _ => append("━", style),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(width: usize) -> Vec<Column> {
        rooms(width).iter().map(|room| room.column).collect()
    }

    #[test]
    fn a_narrow_terminal_has_what_matters_most_and_a_wide_one_has_all() {
        assert_eq!(columns(40), [Column::Name, Column::Share, Column::DeviceMemory]);
        assert_eq!(columns(80).len(), 6, "{:?}", columns(80));
        assert_eq!(columns(200), Column::ALL);
        assert_eq!(columns(0), []);
    }

    #[test]
    fn no_columns_are_wider_than_the_terminal_and_names_and_bars_use_what_is_left() {
        for width in 0..300 {
            let rooms = rooms(width);
            let all: usize = rooms.iter().map(|room| room.width + GAP).sum();
            assert!(all <= width + GAP, "{width}: {rooms:?}");
            let grows = rooms
                .iter()
                .any(|room| IMPORTANT.iter().any(|need| need.0 == room.column && need.3 > room.width));
            assert!(!grows || all == width + GAP, "{width}: {rooms:?}");
        }
    }

    #[test]
    fn a_bar_is_as_long_as_its_part_and_marks_another() {
        let text = |part, mark| bar(8, part, mark, Style::PLAIN).text();
        assert_eq!(text(0.0, None), "────────");
        assert_eq!(text(0.001, None), "╸───────");
        assert_eq!(text(0.5, None), "━━━━────");
        assert_eq!(text(0.56, Some(0.75)), "━━━━╸─┃─");
        assert_eq!(text(1.0, Some(0.25)), "━━┃━━━━━");
        assert_eq!(text(7.0, Some(1.0)), "━━━━━━━┃");
        assert_eq!(bar(0, 1.0, Some(1.0), Style::PLAIN).text(), "");
    }

    #[test]
    fn memory_has_a_bar_only_with_a_bound() {
        let bounded = Memory { held: 3 << 30, limit: Some(6 << 30) };
        assert_eq!(memory(bounded, 9).text(), "   3.0GiB");
        assert_eq!(memory(bounded, 18).text(), "━━━━────    3.0GiB");
        assert_eq!(memory(bounded, 31).text(), "━━━━────       3.0GiB of 6.0GiB");
        assert_eq!(memory(Memory { limit: None, ..bounded }, 31).text().trim(), "3.0GiB");
    }
}
