//! Standard output and standard error, whose readers may be gone: `| head -1` is no error, and no reason to panic as `println!` does.

use std::io::{self, Write, stderr, stdout};

/// The reader of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// There may be one.
    Reads,
    /// The reader has closed its end.
    Gone,
}

/// Prints the whole text, if it has a reader.
///
/// # Errors
///
/// The text cannot be written although the reader is there, as on a full disk.
pub fn print(text: &str) -> io::Result<Reader> {
    write(&mut stdout().lock(), text)
}

/// Writes a text to standard error. A missing reader or a failed write changes nothing.
pub fn tell(text: &str) {
    let _ = stderr().lock().write_all(text.as_bytes());
}

fn write(out: &mut impl Write, text: &str) -> io::Result<Reader> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_reader_that_is_gone_is_no_error_and_a_full_disk_is_one() {
        let (reader, mut writer) = io::pipe().unwrap();
        assert_eq!(write(&mut writer, "text").unwrap(), Reader::Reads);
        drop(reader);
        assert_eq!(write(&mut writer, "text").unwrap(), Reader::Gone);
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        assert!(write(&mut full, "text").is_err());
    }
}
