//! Output of a command's result.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result as IoResult, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use uuid::Uuid;

use crate::exit::{CliError, DONE};

/// Prints a line without control characters, which a terminal could act on. A closed pipe is not an error.
pub fn print_line(line: &str) -> Result<u8, CliError> {
    let visible = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
    let line: String = line.chars().map(visible).collect();
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(CliError::system("cannot write")(error)),
        _ => Ok(DONE),
    }
}

/// Replaces a file atomically: readers see the old text or the new one, also after a crash. Only its owner may read it.
/// A symbolic link is followed and its target replaced. Devices, pipes, folders and links to nothing are refused.
pub fn replace_file(file: &Path, text: &[u8]) -> IoResult<()> {
    let refused = |why| Err(Error::new(ErrorKind::InvalidInput, why));
    let file = match std::fs::metadata(file) {
        // What a link leads to is replaced, unless that has no name: a pipe or a deleted file behind /dev/stdout.
        Ok(found) if found.is_file() => match file.canonicalize() {
            Ok(file) => file,
            Err(_) => return refused("it leads to a file without a name"),
        },
        Ok(_) => return refused("it is not a regular file"),
        Err(error) if error.kind() == ErrorKind::NotFound && file.is_symlink() => {
            return refused("it is a link to a file that does not exist");
        }
        Err(error) if error.kind() == ErrorKind::NotFound => file.to_owned(),
        Err(error) => return Err(error),
    };
    let name = file.file_name().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "it has no name"))?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = folder.join(format!(".{}.{}", name.to_string_lossy(), Uuid::now_v7()));
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).and_then(|mut new| {
        new.write_all(text)?;
        new.sync_all()?;
        std::fs::rename(&temporary, &file)?;
        File::open(folder)?.sync_all()
    });
    if written.is_err() {
        // The file does not exist if its creation failed.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// Table with aligned columns.
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|name| (*name).to_owned()).collect()] }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Prints the table, unless it is empty. On a terminal, rows are cut to its width; a pipe or a file gets all of them.
    pub fn print(&self) -> Result<u8, CliError> {
        if self.rows.len() > 1 {
            let width = terminal_width().unwrap_or(usize::MAX);
            self.lines().iter().try_for_each(|line| print_line(&truncate(line, width)).map(drop))?;
        }
        Ok(DONE)
    }

    fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let length = |cell: &String| cell.chars().count();
        let width = |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(length).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - length(cell))))
                .collect();
            cells.join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

/// The width of the terminal that stdout is, if it is one.
fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Truncates a text to at most `most` characters.
pub fn truncate(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_by_characters() {
        let mut table = TextTable::new(&["NAME", "N"]);
        table.row(["grün".to_owned(), "1".to_owned()]);
        table.row(["yellow".to_owned(), "20".to_owned()]);
        assert_eq!(table.lines(), ["NAME    N", "grün    1", "yellow  20"]);
        assert_eq!(truncate("abcdef", 4), "abc…");
    }
}
