//! The ratios of a group, as a picture.

use super::figures::Line;
use std::fmt::Write as _;

const WIDTH: f64 = 520.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 60.0;
const BAR: f64 = 12.0;
const GAP: f64 = 8.0;
/// The ratios for which the axis has marks; it is logarithmic, and begins and ends with the first and the last of them.
const MARKS: [f64; 9] = [0.05, 0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0];
const COLOURS: [&str; 4] = ["#4477aa", "#ee6677", "#228833", "#ccbb44"];

/// An SVG: a bar for each row and guest from 1, which is as fast as the host, to the ratio, the quartiles as a line on it, and the goal, if it is a
/// ratio, as a mark. Empty if no row has a ratio.
#[must_use]
pub fn plot(lines: &[Line], title: &str) -> Option<String> {
    let rows: Vec<&Line> =
        lines.iter().filter(|line| line.guests().iter().any(|guest| line.ratio(guest).is_some())).collect();
    let guests = rows.first()?.guests();
    let row_height = guests.len() as f64 * BAR + GAP;
    let (width, height) = (LEFT + WIDTH + RIGHT, TOP + rows.len() as f64 * row_height + 30.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n<text x=\"8\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    for (index, guest) in guests.iter().enumerate() {
        let (x, colour) = (LEFT + 110.0 * index as f64, COLOURS[index % COLOURS.len()]);
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"38\" fill=\"{colour}\">{}</text>", guest.name);
    }
    axis(&mut svg, height);
    for (index, line) in rows.iter().enumerate() {
        bars(&mut svg, line, TOP + index as f64 * row_height);
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

fn place(ratio: f64) -> f64 {
    let (first, last) = (MARKS[0].ln(), MARKS[MARKS.len() - 1].ln());
    LEFT + WIDTH * (ratio.ln().clamp(first, last) - first) / (last - first)
}

fn axis(svg: &mut String, height: f64) {
    for mark in MARKS {
        let (x, bottom) = (place(mark), height - 26.0);
        let colour = if mark == 1.0 { "#222222" } else { "#dddddd" };
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\" stroke=\"{colour}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{mark}</text>",
            TOP - 8.0,
            height - 10.0
        );
    }
}

fn bars(svg: &mut String, line: &Line, top: f64) {
    let height = line.guests().len() as f64 * BAR;
    let _ = writeln!(svg, "<text x=\"8\" y=\"{:.1}\">{}</text>", top + height / 2.0 + 4.0, line.row.name);
    for (index, guest) in line.guests().iter().enumerate() {
        let Some(ratio) = line.ratio(guest) else { continue };
        let (y, colour) = (top + index as f64 * BAR, COLOURS[index % COLOURS.len()]);
        let (from, to) = (place(1.0).min(place(ratio.median)), place(1.0).max(place(ratio.median)));
        let middle = y + (BAR - 2.0) / 2.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\" fill-opacity=\"0.6\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" stroke=\"black\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{:.3} ({:.3}..{:.3})</text>",
            to - from,
            BAR - 2.0,
            place(ratio.low),
            place(ratio.high),
            LEFT + WIDTH + 12.0,
            y + BAR - 2.0,
            ratio.median,
            ratio.low,
            ratio.high
        );
        if let Some(super::goals::Goal::Ratio(least)) = line.goal(guest) {
            let x = place(least);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#cc3311\" stroke-width=\"2\"/>",
                y - 1.0,
                y + BAR - 1.0
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::{Column, Reading};
    use super::super::measures::{Row, Unit};
    use super::*;

    fn line(name: &str, guest: Option<f64>) -> Line {
        let row = Row { group: "kernels", name: name.into(), unit: Unit::Rate };
        let column = |name: &str, value: Option<f64>| Column {
            name: name.into(),
            rounds: vec![value.map(Reading::of); 3],
        };
        let columns = vec![column("native", Some(8.0)), column("mesa-26.1", guest)];
        Line { row, columns, notes: Vec::new(), software: false }
    }

    #[test]
    fn a_bar_ends_at_the_ratio_and_a_row_without_one_is_left_out() {
        let svg =
            plot(&[line("kernel-50us-one", Some(16.0)), line("kernel-2ms-one", None)], "speed").unwrap();
        assert!(svg.contains("kernel-50us-one") && !svg.contains("kernel-2ms-one"));
        let (from, to) = (place(0.5), place(1.0));
        assert!(
            svg.contains(&format!("<rect x=\"{from:.1}\""))
                && svg.contains(&format!("width=\"{:.1}\"", to - from))
        );
        assert!(svg.contains("0.500 (0.500..0.500)"));
        assert_eq!(plot(&[line("kernel-2ms-one", None)], "speed"), None);
    }
}
