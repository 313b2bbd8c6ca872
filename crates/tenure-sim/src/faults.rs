//! What goes wrong, chosen by the seed.

use std::time::Duration;

use crate::observation::{LeaseIndex, ProcessId};

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process dies and is started again later.
    Crash {
        /// Who.
        process: ProcessId,
        /// How much later.
        down: Duration,
    },
    /// A process is stopped, or its machine suspended: nothing of it runs, its clock goes on.
    Stop {
        /// Who.
        process: ProcessId,
        /// For how long.
        span: Duration,
    },
    /// A virtual machine is frozen: nothing of it runs, and no clock of it notices.
    Freeze {
        /// Who.
        process: ProcessId,
        /// For how long.
        span: Duration,
    },
    /// The network between a process and the store swallows packets, in one direction or both.
    Partition {
        /// Who.
        process: ProcessId,
        /// Whether requests are swallowed.
        requests: bool,
        /// Whether replies are.
        replies: bool,
        /// For how long.
        span: Duration,
    },
    /// A connection is reset.
    Reset {
        /// Whose.
        process: ProcessId,
    },
    /// The network is slow.
    Slow {
        /// How much each packet is delayed at most.
        delay: Duration,
        /// For how long.
        span: Duration,
    },
    /// The store does not answer for a while, and then answers everything.
    Stall {
        /// For how long.
        span: Duration,
    },
    /// The store is restarted.
    Restart {
        /// What is left of its data.
        survival: DataSurvival,
        /// How long it is down.
        down: Duration,
    },
    /// The store forgets everything while running.
    Flush,
    /// A process's wall clock is set.
    WallClockStep {
        /// Whose.
        process: ProcessId,
        /// By how much.
        nanos: i64,
    },
    /// The store's clock is set.
    ServerClockStep {
        /// By how much.
        micros: i64,
    },
    /// An outsider deletes a lease.
    ForeignDelete {
        /// Which.
        lease: LeaseIndex,
    },
}

/// What is left of a store's data after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSurvival {
    /// Everything.
    All,
    /// Everything but the last writes.
    AllButLastWrites,
    /// What an old backup held.
    Backup,
    /// Nothing.
    Nothing,
}

impl Fault {
    /// Whether the store's data is not what it was.
    pub fn is_data_loss(&self) -> bool {
        match self {
            Self::Flush => true,
            Self::Restart { survival, .. } => *survival != DataSurvival::All,
            _ => false,
        }
    }

    /// How long it lasts.
    pub fn duration(&self) -> Duration {
        match self {
            Self::Crash { down: span, .. }
            | Self::Restart { down: span, .. }
            | Self::Stop { span, .. }
            | Self::Freeze { span, .. }
            | Self::Partition { span, .. }
            | Self::Slow { span, .. }
            | Self::Stall { span } => *span,
            Self::Reset { .. }
            | Self::Flush
            | Self::WallClockStep { .. }
            | Self::ServerClockStep { .. }
            | Self::ForeignDelete { .. } => Duration::ZERO,
        }
    }

    /// Its name, for counting.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash",
            Self::Stop { .. } => "stop",
            Self::Freeze { .. } => "freeze",
            Self::Partition { .. } => "partition",
            Self::Reset { .. } => "connection reset",
            Self::Slow { .. } => "slow network",
            Self::Stall { .. } => "store stall",
            Self::Restart { survival: DataSurvival::All, .. } => "restart with all data",
            Self::Restart { survival: DataSurvival::AllButLastWrites, .. } => "restart without the last writes",
            Self::Restart { survival: DataSurvival::Backup, .. } => "restart from a backup",
            Self::Restart { survival: DataSurvival::Nothing, .. } => "restart with nothing",
            Self::Flush => "flush",
            Self::WallClockStep { .. } => "wall clock step",
            Self::ServerClockStep { .. } => "server clock step",
            Self::ForeignDelete { .. } => "outsider deletes a lease",
        }
    }
}

/// Which faults a world has, and how often.
#[derive(Clone, Debug)]
pub struct FaultSchedule {
    /// The mean time between two faults.
    pub mean_interval: Duration,
    /// Whether the store may lose data.
    pub store_faults: bool,
    /// Whether faults outside the promise happen.
    pub outside_promise: bool,
}

impl FaultSchedule {
    /// Chooses the next fault.
    pub fn choose(&self, rng: &mut fastrand::Rng, processes: usize, leases: usize, ttl: Duration) -> Fault {
        let process = ProcessId(rng.usize(..processes));
        let lease = LeaseIndex(rng.usize(..leases));
        let span = |rng: &mut fastrand::Rng, most: f64| ttl.mul_f64(rng.f64() * rng.f64() * most);
        loop {
            return match rng.u32(..100) {
                0..12 => Fault::Crash { process, down: span(rng, 2.0) },
                12..27 => Fault::Stop { process, span: span(rng, 4.0) },
                27..45 => {
                    let (requests, replies) = [(true, true), (true, false), (false, true)][rng.usize(..3)];
                    Fault::Partition { process, requests, replies, span: span(rng, 4.0) }
                }
                45..55 => Fault::Reset { process },
                55..63 => Fault::Slow { delay: span(rng, 0.2), span: span(rng, 2.0) },
                63..70 => Fault::Stall { span: span(rng, 2.0) },
                70..76 => {
                    let shift = [-3_600.0, -1.0, 0.3, 1.0, 60.0][rng.usize(..5)] * ttl.as_secs_f64();
                    Fault::WallClockStep { process, nanos: (shift * 1e9) as i64 }
                }
                76..88 if self.store_faults => {
                    use DataSurvival::{All, AllButLastWrites, Backup, Nothing};
                    let survival = [All, AllButLastWrites, Backup, Nothing][rng.usize(..4)];
                    Fault::Restart { survival, down: span(rng, 2.0) }
                }
                88..91 if self.store_faults => Fault::Flush,
                91..94 if self.outside_promise => Fault::Freeze { process, span: span(rng, 3.0) },
                94..97 if self.outside_promise => {
                    let shift = [-100.0, -1.0, -0.1, 0.1, 1.0, 100.0][rng.usize(..6)] * ttl.as_secs_f64();
                    Fault::ServerClockStep { micros: (shift * 1e6) as i64 }
                }
                97..100 if self.outside_promise => Fault::ForeignDelete { lease },
                _ => continue,
            };
        }
    }
}
