//! The line protocol between `run` and its guardian.

/// Until when a command may run, in nanoseconds of `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When the guardian asks it to end.
    pub end_at: u64,
    /// When the guardian kills it.
    pub kill_at: u64,
    /// When the lease can have another holder: no process of the command may be left.
    pub gone_by: u64,
}

/// Order from `run` to the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardianOrder {
    /// The command may run until then. The first deadline starts it.
    Deadline(Deadline),
    /// End the command now.
    End,
    /// Pass this signal on to the command.
    Signal(i32),
}

impl GuardianOrder {
    pub fn line(self) -> String {
        match self {
            Self::Deadline(Deadline { end_at, kill_at, gone_by }) => format!("deadline {end_at} {kill_at} {gone_by}\n"),
            Self::End => "end\n".to_owned(),
            Self::Signal(number) => format!("signal {number}\n"),
        }
    }

    pub fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["deadline", end, kill, gone] => Some(Self::Deadline(Deadline {
                end_at: end.parse().ok()?,
                kill_at: kill.parse().ok()?,
                gone_by: gone.parse().ok()?,
            })),
            ["end"] => Some(Self::End),
            ["signal", number] => Some(Self::Signal(number.parse().ok()?)),
            _ => None,
        }
    }
}

/// Report from the guardian to `run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardianReport {
    /// The command does not exist or cannot be run: the exit status to use, and the reason.
    NotStarted { code: u8, why: String },
    /// The guardian has received a deadline.
    Acknowledged,
    /// The first deadline had passed, so the command was not started.
    TooLate,
    /// The command has ended with this status. `in_time`: by itself, before it had to end.
    Ended { code: u8, in_time: bool },
    /// No process of the command is left, as reported by the kernel.
    Gone,
    /// The command could not be ended by its deadline: the visible remaining processes.
    Stuck { pids: Vec<i32> },
}

impl GuardianReport {
    pub fn line(&self) -> String {
        match self {
            Self::NotStarted { code, why } => format!("not-started {code} {}\n", why.replace('\n', " ")),
            Self::Acknowledged => "heard\n".to_owned(),
            Self::TooLate => "too-late\n".to_owned(),
            Self::Ended { code, in_time } => format!("ended {code} {}\n", u8::from(*in_time)),
            Self::Gone => "gone\n".to_owned(),
            Self::Stuck { pids } => {
                let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
                format!("stuck {}\n", pids.join(" "))
            }
        }
    }

    pub fn read(line: &str) -> Option<Self> {
        let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        match word {
            "not-started" => {
                let (code, why) = rest.split_once(' ')?;
                Some(Self::NotStarted { code: code.parse().ok()?, why: why.to_owned() })
            }
            "heard" => Some(Self::Acknowledged),
            "too-late" => Some(Self::TooLate),
            "ended" => {
                let (code, in_time) = rest.split_once(' ')?;
                Some(Self::Ended { code: code.parse().ok()?, in_time: in_time == "1" })
            }
            "gone" => Some(Self::Gone),
            "stuck" => rest
                .split_whitespace()
                .map(|pid| pid.parse().ok())
                .collect::<Option<_>>()
                .map(|pids| Self::Stuck { pids }),
            _ => None,
        }
    }
}

/// Returns the current time of the deadline clock.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let deadline = Deadline { end_at: 1, kill_at: 2, gone_by: u64::MAX };
        for order in [GuardianOrder::Deadline(deadline), GuardianOrder::End, GuardianOrder::Signal(15)] {
            assert_eq!(GuardianOrder::read(&order.line()), Some(order));
        }
        let why = "no such file".to_owned();
        for report in [
            GuardianReport::NotStarted { code: 127, why },
            GuardianReport::Acknowledged,
            GuardianReport::TooLate,
            GuardianReport::Ended { code: 255, in_time: true },
            GuardianReport::Ended { code: 0, in_time: false },
            GuardianReport::Gone,
            GuardianReport::Stuck { pids: vec![12, 345] },
            GuardianReport::Stuck { pids: Vec::new() },
        ] {
            assert_eq!(GuardianReport::read(&report.line()), Some(report));
        }
        assert_eq!(
            (GuardianOrder::read("deadline 1 2"), GuardianReport::read("ended x"), GuardianReport::read("stuck x")),
            (None, None, None)
        );
    }
}
