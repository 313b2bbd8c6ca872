//! Faults, chosen by the seed.

use std::time::Duration;

use crate::observation::{LeaseIndex, ProcessId};

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process dies and is restarted later.
    Crash {
        /// The process.
        process: ProcessId,
        /// Time until the restart.
        down: Duration,
    },
    /// A process is stopped, or its machine suspended: none of its code runs, but its clock goes on.
    Stop {
        /// The process.
        process: ProcessId,
        /// Duration.
        span: Duration,
    },
    /// A virtual machine is frozen: none of its code runs, and its clocks do not advance.
    Freeze {
        /// The process.
        process: ProcessId,
        /// Duration.
        span: Duration,
    },
    /// The network between a process and the store drops packets, in one direction or both.
    Partition {
        /// The process.
        process: ProcessId,
        /// Whether requests are dropped.
        requests: bool,
        /// Whether replies are dropped.
        replies: bool,
        /// Duration.
        span: Duration,
    },
    /// A connection is reset.
    Reset {
        /// The process.
        process: ProcessId,
    },
    /// The network is slow.
    Slow {
        /// Maximum delay of each packet.
        delay: Duration,
        /// Duration.
        span: Duration,
    },
    /// The store does not reply for a while, then replies to everything.
    Stall {
        /// Duration.
        span: Duration,
    },
    /// The store is restarted.
    Restart {
        /// The data that survives.
        survival: DataSurvival,
        /// Downtime.
        down: Duration,
    },
    /// The store loses all data while running.
    Flush,
    /// A process's wall clock is stepped.
    WallClockStep {
        /// The process.
        process: ProcessId,
        /// Size of the step.
        nanos: i64,
    },
    /// The store's clock is stepped.
    ServerClockStep {
        /// Size of the step.
        micros: i64,
    },
    /// A connected process hears no announcements.
    Deaf {
        /// The process.
        process: ProcessId,
        /// Duration.
        span: Duration,
    },
    /// The store evicts the record of a lease's last term.
    EvictTerm {
        /// The lease.
        lease: LeaseIndex,
    },
    /// The store evicts the namespace record.
    EvictNamespace,
    /// The janitor removes what is known of a lease, if it has been idle.
    Forget {
        /// The lease.
        lease: LeaseIndex,
    },
    /// The data is replaced by an older copy of another server, behind open connections, as by a proxy that switches to a
    /// promoted replica.
    ReplaceData,
    /// A foreign program deletes a lease.
    ForeignDelete {
        /// The lease.
        lease: LeaseIndex,
    },
}

/// The data of a store that survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSurvival {
    /// All data.
    All,
    /// All data except the last writes.
    AllButLastWrites,
    /// The contents of an old backup.
    Backup,
    /// No data.
    Nothing,
}

impl Fault {
    /// Returns whether the store's data differs from before the fault.
    pub fn is_data_loss(&self) -> bool {
        match self {
            Self::Flush | Self::ReplaceData | Self::EvictNamespace => true,
            Self::Restart { survival, .. } => *survival != DataSurvival::All,
            _ => false,
        }
    }

    /// Duration of the fault.
    pub fn duration(&self) -> Duration {
        match self {
            Self::Crash { down: span, .. }
            | Self::Restart { down: span, .. }
            | Self::Stop { span, .. }
            | Self::Freeze { span, .. }
            | Self::Partition { span, .. }
            | Self::Slow { span, .. }
            | Self::Deaf { span, .. }
            | Self::Stall { span } => *span,
            Self::Reset { .. }
            | Self::Flush
            | Self::EvictTerm { .. }
            | Self::EvictNamespace
            | Self::Forget { .. }
            | Self::ReplaceData
            | Self::WallClockStep { .. }
            | Self::ServerClockStep { .. }
            | Self::ForeignDelete { .. } => Duration::ZERO,
        }
    }

    /// Name of the fault, for counting.
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
            Self::Deaf { .. } => "deafness",
            Self::EvictTerm { .. } => "eviction of a term",
            Self::EvictNamespace => "eviction of the namespace record",
            Self::Forget { .. } => "removal of what is known of a lease",
            Self::ReplaceData => "replaced data",
            Self::ForeignDelete { .. } => "foreign delete of a lease",
        }
    }
}

/// Which faults a world has, and their frequency.
#[derive(Clone, Debug)]
pub struct FaultSchedule {
    /// Mean time between two faults.
    pub mean_interval: Duration,
    /// Whether the store may lose data.
    pub store_faults: bool,
    /// Whether faults outside the promise may happen.
    pub outside_promise: bool,
}

impl FaultSchedule {
    /// Chooses the next fault.
    pub fn choose(&self, rng: &mut fastrand::Rng, processes: usize, leases: usize, ttl: Duration) -> Fault {
        let process = ProcessId(rng.usize(..processes));
        let lease = LeaseIndex(rng.usize(..leases));
        let span = |rng: &mut fastrand::Rng, most: f64| ttl.mul_f64(rng.f64() * rng.f64() * most);
        loop {
            return match rng.u32(..118) {
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
                100..106 => Fault::Deaf { process, span: span(rng, 4.0) },
                106..110 => Fault::Forget { lease },
                // Nothing shortens a lease without a term when the clock is set back: another program may hold it.
                110..112 if self.store_faults && !self.outside_promise => Fault::EvictTerm { lease },
                112..114 if self.store_faults => Fault::EvictNamespace,
                114..118 if self.store_faults => Fault::ReplaceData,
                _ => continue,
            };
        }
    }
}
