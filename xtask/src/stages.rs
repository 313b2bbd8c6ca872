//! Runs a command's stages in order, times them and prints a summary table.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::command_line::CommandLine;

/// The result of a stage that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageOutcome {
    /// The stage did all of its work.
    Passed,
    /// The stage lacked something that it needs; the text says what.
    Skipped(String),
}

/// One stage of a command.
pub struct Stage {
    name: &'static str,
    rerun_command: Option<String>,
    action: Box<dyn FnOnce() -> Result<StageOutcome, String>>,
}

impl Stage {
    /// Creates a stage that runs one command, which must succeed.
    pub fn command(name: &'static str, line: CommandLine) -> Self {
        let rerun_command = Some(line.to_string());
        let action = move || match line.status()? {
            status if status.success() => Ok(StageOutcome::Passed),
            status => Err(status.to_string()),
        };
        Self { name, rerun_command, action: Box::new(action) }
    }

    /// Creates a stage that runs a function. It can be repeated by hand only with [`Stage::rerun_with`].
    pub fn check(name: &'static str, action: impl FnOnce() -> Result<StageOutcome, String> + 'static) -> Self {
        Self { name, rerun_command: None, action: Box::new(action) }
    }

    /// Sets the command that repeats the stage.
    pub fn rerun_with(mut self, line: &CommandLine) -> Self {
        self.rerun_command = Some(line.to_string());
        self
    }
}

/// A stage that has run.
struct FinishedStage {
    name: &'static str,
    took: Duration,
    end: &'static str,
}

/// Runs the stages in order up to the first failure. Returns whether no stage failed.
pub fn run(stages: Vec<Stage>) -> bool {
    let total = stages.len();
    let mut done = Vec::with_capacity(total);
    let mut skipped = Vec::new();
    for (index, stage) in stages.into_iter().enumerate() {
        let number = index + 1;
        match &stage.rerun_command {
            Some(line) => println!("\n==> {number}/{total} {}: {line}", stage.name),
            None => println!("\n==> {number}/{total} {}", stage.name),
        }
        let start = Instant::now();
        let result = (stage.action)();
        let took = start.elapsed();
        let end = match &result {
            Ok(StageOutcome::Passed) => "passed",
            Ok(StageOutcome::Skipped(_)) => "SKIPPED",
            Err(_) => "FAILED",
        };
        println!("<== {number}/{total} {}: {end} after {}", stage.name, format_duration(took));
        done.push(FinishedStage { name: stage.name, took, end });
        match result {
            Ok(StageOutcome::Passed) => {}
            Ok(StageOutcome::Skipped(why)) => skipped.push(format!("SKIPPED: {}: {why}", stage.name)),
            Err(why) => {
                // A table of one row would only distract from the message.
                if done.len() > 1 {
                    println!("\n{}", table(&done));
                }
                println!("\nFAILED: {}: {why}", stage.name);
                if let Some(line) = stage.rerun_command {
                    println!("To repeat only this stage: {line}");
                }
                return false;
            }
        }
    }
    println!("\n{}", table(&done));
    for line in skipped {
        println!("\n{line}");
    }
    true
}

fn table(done: &[FinishedStage]) -> String {
    let total = done.iter().map(|stage| stage.took).sum();
    let name_width = done.iter().map(|stage| stage.name.len()).chain(["total".len()]).max().unwrap_or_default();
    let mut text = String::new();
    for stage in done {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:name_width$}  {:>12}  {}", stage.name, format_duration(stage.took), stage.end);
    }
    let _ = write!(text, "{:name_width$}  {:>12}", "total", format_duration(total));
    text
}

fn format_duration(time: Duration) -> String {
    let tenths = (time.as_millis() + 50) / 100;
    match tenths / 600 {
        0 => format!("{}.{} s", tenths / 10, tenths % 10),
        minutes => format!("{minutes} min {:02} s", tenths / 10 % 60),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn times_are_short_to_read() {
        for (milliseconds, text) in
            [(0, "0.0 s"), (49, "0.0 s"), (50, "0.1 s"), (12_340, "12.3 s"), (59_949, "59.9 s"), (59_950, "1 min 00 s")]
        {
            assert_eq!(format_duration(Duration::from_millis(milliseconds)), text);
        }
        assert_eq!(format_duration(Duration::from_secs(3_725)), "62 min 05 s");
    }

    #[test]
    fn the_table_has_a_row_for_each_stage_and_the_sum() {
        let stage = |name, seconds, end| FinishedStage { name, took: Duration::from_secs(seconds), end };
        assert_eq!(
            table(&[stage("tests", 61, "passed"), stage("simulator", 4, "FAILED")]),
            "tests        1 min 01 s  passed\n\
             simulator         4.0 s  FAILED\n\
             total        1 min 05 s"
        );
    }

    #[test]
    fn the_first_failure_ends_the_run() {
        static RAN: AtomicUsize = AtomicUsize::new(0);
        let stage = |result: Result<StageOutcome, String>| {
            Stage::check("stage", move || {
                RAN.fetch_add(1, Ordering::Relaxed);
                result
            })
        };
        let skipped = || Ok(StageOutcome::Skipped("not there".to_owned()));
        assert!(run(vec![stage(Ok(StageOutcome::Passed)), stage(skipped()), stage(Ok(StageOutcome::Passed))]));
        assert_eq!(RAN.swap(0, Ordering::Relaxed), 3);
        assert!(!run(vec![stage(skipped()), stage(Err("broken".to_owned())), stage(Ok(StageOutcome::Passed))]));
        assert_eq!(RAN.load(Ordering::Relaxed), 2);
    }
}
