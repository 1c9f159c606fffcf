//! Shares over time, as a picture.

use super::figures::Figures;
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
const MARGIN: f64 = 40.0;
const COLOURS: [&str; 8] =
    ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222"];

/// An SVG: each tenant's share of the GPU in each half second as a stacked area, with dashed lines at the intended borders.
#[must_use]
pub fn plot(figures: &Figures, title: &str) -> String {
    let parts: Vec<Vec<f64>> = figures.outcomes.iter().map(|outcome| halves(&outcome.parts())).collect();
    let count = parts.iter().map(Vec::len).min().unwrap_or_default().max(1);
    let x = |at: usize| MARGIN + WIDTH * at as f64 / count as f64;
    let y = |part: f64| MARGIN + HEIGHT * (1.0 - part / 1.1);
    let (width, height) = (WIDTH + 2.0 * MARGIN + 120.0, HEIGHT + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n<text x=\"{MARGIN}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    let mut below = vec![0.0; count];
    let mut border = 0.0;
    for (index, (part, target)) in parts.iter().zip(figures.targets()).enumerate() {
        let above: Vec<f64> = below.iter().zip(part).map(|(below, part)| below + part).collect();
        let top = above.iter().enumerate().flat_map(|(at, part)| [(x(at), y(*part)), (x(at + 1), y(*part))]);
        let bottom =
            below.iter().enumerate().flat_map(|(at, part)| [(x(at), y(*part)), (x(at + 1), y(*part))]);
        let outline: Vec<_> = top.chain(bottom.collect::<Vec<_>>().into_iter().rev()).collect();
        let points = outline.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
        let colour = COLOURS[index % COLOURS.len()];
        let _ = writeln!(svg, "<polygon points=\"{points}\" fill=\"{colour}\" fill-opacity=\"0.8\"/>");
        let (left, name) = (MARGIN + WIDTH + 10.0, figures.outcomes[index].tenant.name);
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{:.1}\" fill=\"{colour}\">{name} {:.3}</text>",
            MARGIN + 16.0 * (index + 1) as f64,
            figures.shares()[index]
        );
        border += target;
        let _ = writeln!(
            svg,
            "<line x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"black\" stroke-dasharray=\"4 4\"/>",
            MARGIN + WIDTH,
            y(border),
            y(border)
        );
        below = above;
    }
    for tick in 0..=4 {
        let part = f64::from(tick) / 4.0;
        let _ = writeln!(svg, "<text x=\"4\" y=\"{:.1}\">{:3.0} %</text>", y(part) + 4.0, part * 100.0);
    }
    let seconds = count as f64 / 2.0;
    let _ = writeln!(
        svg,
        "<text x=\"{MARGIN}\" y=\"{:.1}\">0 s</text><text x=\"{:.1}\" y=\"{:.1}\">{seconds:.0} s</text>\n</svg>",
        height - 20.0,
        MARGIN + WIDTH - 20.0,
        height - 20.0
    );
    svg
}

/// Returns the part of each half second, from those of hundredths.
fn halves(parts: &[f64]) -> Vec<f64> {
    parts.chunks_exact(50).map(|hundredths| hundredths.iter().sum::<f64>() / 50.0).collect()
}
