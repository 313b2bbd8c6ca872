//! What a sequence is made of, and the few names, values and spans that it draws from.

use std::time::Duration;

use tenure::lease::{Ending, Loss, ReleaseReason};
use tenure::{Group, InstanceId, LeaseName};

/// A span that is waited out before anything else is asked.
pub(crate) const SHORT: Duration = Duration::from_millis(5);
/// Well beyond that.
pub(crate) const BEYOND_SHORT: Duration = Duration::from_millis(25);
/// Spans that do not end while this runs.
pub(crate) const LONG: [Duration; 4] = [
    Duration::from_secs(300),
    Duration::from_secs(3_600),
    Duration::from_secs(24 * 3_600),
    // Above the longest ttl there is.
    Duration::from_secs(30 * 3_600),
];

pub(crate) const CLIENTS: usize = 3;
const HOLDERS: [&str; 3] = ["api-1", "api-2", "ä:b?c"];
/// Holders as outsiders write them, some of them ours.
pub(crate) const FOREIGN: [&str; 5] = ["api-1", "api-2", "another program", "", "x{y}"];
pub(crate) const RECORDS: [&str; 3] = ["state", "", "a b\n\0{c} ü"];
pub(crate) const VALUES: [&[u8]; 4] = [b"", b"1 2 3", b" \0\xff\r\n", &[b'x'; 300]];
pub(crate) const ENTRIES: [&str; 4] = ["eu-1", "", "a b\n\0{c} ü", "EU-1"];

/// A token, by where it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    /// The n-th seen, counted from the latest.
    Seen(usize),
    /// Below and above all that exist.
    Below(usize),
    Above(usize),
    /// This far from the largest.
    Last(u64),
    Zero,
}

/// What a process remembers when it enters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    Nothing,
    Everything,
    /// Not what was.
    False {
        older: bool,
        newer: bool,
        stamp: bool,
        token: Option<Which>,
        max_ttl: Option<Duration>,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    pub(crate) token: Which,
    /// Whether lease and holder are those that the token was granted for, if it was.
    pub(crate) right: bool,
    pub(crate) lease: usize,
    pub(crate) holder: usize,
}

/// A request, before its tokens are known.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    Acquire {
        lease: usize,
        holder: usize,
        nonce: u8,
        ttl: Duration,
        ended: Option<Which>,
    },
    TakeOver {
        lease: usize,
        holder: usize,
        nonce: u8,
        ttl: Duration,
        victim: Which,
        stale_after: Duration,
    },
    Renew {
        term: Term,
        ttl: Duration,
        progressed: bool,
    },
    Release {
        term: Term,
        ending: usize,
    },
    Abandon {
        lease: usize,
        holder: usize,
        nonce: u8,
    },
    HandOver {
        term: Term,
        to: usize,
        window: Duration,
    },
    Revoke {
        lease: usize,
        token: Which,
    },
    StepDown {
        lease: usize,
        token: Which,
        to: Option<usize>,
    },
    Inspect {
        lease: usize,
    },
    InspectNamespace,
    /// Ends the quarantine of the generation that its client has entered, or of another.
    Reopen {
        right: bool,
    },
    Holder {
        lease: usize,
    },
    Forget {
        lease: usize,
        idle_for: Duration,
    },
    Publish {
        term: Term,
        record: usize,
        value: usize,
    },
    Read {
        lease: usize,
        record: usize,
    },
    Announce {
        lease: usize,
        token: Which,
    },
    Beat {
        group: usize,
        instance: usize,
        ttl: Duration,
        record: usize,
    },
    Leave {
        group: usize,
        instance: usize,
    },
    Members {
        group: usize,
    },
    IndexAdd {
        index: usize,
        entry: usize,
        announced: bool,
    },
    IndexRemove {
        index: usize,
        entry: usize,
        announced: bool,
    },
    IndexList {
        index: usize,
    },
    Note {
        term: Term,
        ending: Option<usize>,
    },
    Notes {
        limit: usize,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Enter {
        client: usize,
        memory: Memory,
        max_ttl: Duration,
        bootstrap: bool,
        durable: bool,
        observer: bool,
        stamp: u64,
    },
    Submit {
        client: usize,
        batch: Vec<Wish>,
    },
    Flush,
    WriteForeign {
        lease: usize,
        holder: usize,
        ttl: Option<Duration>,
    },
    DeleteForeign {
        lease: usize,
    },
    Wait,
}

pub(crate) fn lease(number: usize) -> LeaseName {
    match number {
        0 => LeaseName::lease("a").unwrap(),
        1 => LeaseName::role("b").unwrap(),
        _ => LeaseName::target("poll", "ü:1").unwrap(),
    }
}

pub(crate) fn holder(number: usize) -> InstanceId {
    InstanceId::new(HOLDERS[number]).unwrap()
}

pub(crate) fn group(number: usize) -> Group {
    match number {
        0 => Group::FLEET,
        1 => Group::candidates("b:heartbeat:").unwrap(),
        _ => Group::candidates("ü:").unwrap(),
    }
}

pub(crate) fn ending(number: usize) -> Ending {
    match number {
        0 => Ending::GivenUp,
        1 => Ending::Released(ReleaseReason::StepDown),
        2 => Ending::Lost(Loss::Taken { by: InstanceId::foreign("another program") }),
        _ => Ending::Lost(Loss::ClockStep),
    }
}

pub(crate) fn uses_short_span(ask: &Wish) -> bool {
    match ask {
        Wish::Acquire { ttl, .. }
        | Wish::TakeOver { ttl, .. }
        | Wish::Renew { ttl, .. }
        | Wish::HandOver { window: ttl, .. }
        | Wish::Beat { ttl, .. } => *ttl == SHORT,
        _ => false,
    }
}

pub(crate) fn takes_over_after_short(ask: &Wish) -> bool {
    matches!(ask, Wish::TakeOver { stale_after, .. } if *stale_after == SHORT)
}
