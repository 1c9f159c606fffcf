//! Text as a terminal may get it. Guests name programs, drivers name GPUs, and users name files: such a name may hold characters that command a
//! terminal, turn the direction of the text, or are invisible.

use std::fmt::Write;

/// Returns a character as a terminal may get it: one that would command the terminal or be hidden becomes a question mark.
#[must_use]
pub fn visible(c: char) -> char {
    if c.is_control() || is_hidden(c) { '?' } else { c }
}

/// Returns lines of text as a terminal may get them: all characters except line breaks are [`visible`].
#[must_use]
pub fn lines_for_terminal(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { c } else { visible(c) }).collect()
}

/// Returns JSON with the same meaning, as a terminal may get it: hidden characters, which only strings can hold, are written as escapes.
/// Control characters are escaped in any JSON.
#[must_use]
pub fn json_for_terminal(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match is_hidden(c) || (c.is_control() && !c.is_ascii()) || c == '\u{7f}' {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                // Writing to a string cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }),
            false => text.push(c),
        }
    }
    text
}

/// Returns whether a character is invisible, or changes the direction of other text (Unicode's bidirectional and other format characters).
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_a_terminal_is_not_visible() {
        let shown: String = "ok é 名\u{1b}\u{7f}\u{9b}\u{202e}\u{200b}\n".chars().map(visible).collect();
        assert_eq!(shown, "ok é 名??????");
        assert_eq!(lines_for_terminal("a\u{202e}b\nc\t"), "a?b\nc?");
    }

    #[test]
    fn json_keeps_its_meaning_without_hidden_characters() {
        assert_eq!(
            json_for_terminal("{\"é\":\"a\u{202e}b\u{9b}\u{e0041}\"}\n"),
            "{\"é\":\"a\\u202eb\\u009b\\udb40\\udc41\"}\n"
        );
    }
}
