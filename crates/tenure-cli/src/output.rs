//! What a command answers.

use std::io::Write;

use crate::exit::{DONE, Failure};

/// A line of the answer, without what would make a terminal do something. Whoever reads no more has had enough.
pub fn say(line: &str) -> Result<u8, Failure> {
    let visible = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
    let line: String = line.chars().map(visible).collect();
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::system("cannot write")(error)),
        _ => Ok(DONE),
    }
}
