//! What `run` and its guardian say to each other: a line each.

/// From `run` to the guardian. Times are nanoseconds of `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Until when the command may run: when it is told to end, and when it is killed.
    Deadline { end_at: u64, kill_at: u64 },
    /// End the command now.
    End,
    /// Pass this signal on.
    Signal(i32),
}

impl Order {
    pub fn line(self) -> String {
        match self {
            Self::Deadline { end_at, kill_at } => format!("deadline {end_at} {kill_at}\n"),
            Self::End => "end\n".to_owned(),
            Self::Signal(number) => format!("signal {number}\n"),
        }
    }

    pub fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["deadline", end, kill] => Some(Self::Deadline { end_at: end.parse().ok()?, kill_at: kill.parse().ok()? }),
            ["end"] => Some(Self::End),
            ["signal", number] => Some(Self::Signal(number.parse().ok()?)),
            _ => None,
        }
    }
}

/// From the guardian to `run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// There is no such command, or it cannot be run: the exit status to end with, and why.
    NotStarted { code: u8, why: String },
    /// The command has ended with this status, by itself or because it was told to.
    Ended { code: u8 },
    /// Nothing of it is running any more.
    Gone,
}

impl Report {
    pub fn line(&self) -> String {
        match self {
            Self::NotStarted { code, why } => format!("not-started {code} {}\n", why.replace('\n', " ")),
            Self::Ended { code } => format!("ended {code}\n"),
            Self::Gone => "gone\n".to_owned(),
        }
    }

    pub fn read(line: &str) -> Option<Self> {
        let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        match word {
            "not-started" => {
                let (code, why) = rest.split_once(' ')?;
                Some(Self::NotStarted { code: code.parse().ok()?, why: why.to_owned() })
            }
            "ended" => Some(Self::Ended { code: rest.parse().ok()? }),
            "gone" => Some(Self::Gone),
            _ => None,
        }
    }
}

/// Now, on the clock that orders are about.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        for order in [Order::Deadline { end_at: 1, kill_at: u64::MAX }, Order::End, Order::Signal(15)] {
            assert_eq!(Order::read(&order.line()), Some(order));
        }
        let why = "no such file".to_owned();
        for report in [Report::NotStarted { code: 127, why }, Report::Ended { code: 255 }, Report::Gone] {
            assert_eq!(Report::read(&report.line()), Some(report));
        }
        assert_eq!((Order::read("deadline 1"), Report::read("ended x")), (None, None));
    }
}
