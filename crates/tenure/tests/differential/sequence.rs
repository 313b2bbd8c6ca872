//! The operations of a sequence, and the few names, values and spans that they use.

use std::time::Duration;

use tenure::lease::{Ending, Loss, ReleaseReason};
use tenure::{Group, InstanceId, LeaseName};

/// A span that is waited for before the next request.
pub(crate) const SHORT_SPAN: Duration = Duration::from_millis(5);
/// Well beyond [`SHORT_SPAN`].
pub(crate) const BEYOND_SHORT_SPAN: Duration = Duration::from_millis(25);
/// Spans that do not end during the test.
pub(crate) const LONG_SPANS: [Duration; 4] = [
    Duration::from_secs(300),
    Duration::from_secs(3_600),
    Duration::from_secs(24 * 3_600),
    // Above the maximum ttl.
    Duration::from_secs(30 * 3_600),
];

pub(crate) const CLIENTS: usize = 3;
const HOLDERS: [&str; 3] = ["api-1", "api-2", "ä:b?c"];
/// Holders as foreign programs write them; some of them are ours.
pub(crate) const FOREIGN_HOLDERS: [&str; 5] = ["api-1", "api-2", "another program", "", "x{y}"];
pub(crate) const RECORDS: [&str; 3] = ["state", "", "a b\n\0{c} ü"];
pub(crate) const VALUES: [&[u8]; 4] = [b"", b"1 2 3", b" \0\xff\r\n", &[b'x'; 300]];
pub(crate) const ENTRIES: [&str; 4] = ["eu-1", "", "a b\n\0{c} ü", "EU-1"];

/// A token, by its origin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TokenTemplate {
    /// The n-th token seen, counted from the latest.
    Seen(usize),
    /// Below or above all existing tokens.
    Below(usize),
    Above(usize),
    /// This far from the largest possible token.
    Last(u64),
    Zero,
}

/// The memory of a process when it attaches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemoryTemplate {
    Nothing,
    Everything,
    /// A memory that does not match the data.
    False {
        older: bool,
        newer: bool,
        stamp: bool,
        token: Option<TokenTemplate>,
        max_ttl: Option<Duration>,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TermTemplate {
    pub(crate) token: TokenTemplate,
    /// Whether lease and holder are those that the token was granted for, if it was.
    pub(crate) right: bool,
    pub(crate) lease: usize,
    pub(crate) holder: usize,
}

/// A request, before its tokens are known.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestTemplate {
    Acquire {
        lease: usize,
        holder: usize,
        nonce: u8,
        ttl: Duration,
        ended: Option<TokenTemplate>,
    },
    TakeOver {
        lease: usize,
        holder: usize,
        nonce: u8,
        ttl: Duration,
        victim: TokenTemplate,
        stale_after: Duration,
    },
    Renew {
        term: TermTemplate,
        ttl: Duration,
        progressed: bool,
    },
    Release {
        term: TermTemplate,
        ending: usize,
    },
    Abandon {
        lease: usize,
        holder: usize,
        nonce: u8,
    },
    HandOver {
        term: TermTemplate,
        to: usize,
        window: Duration,
    },
    Revoke {
        lease: usize,
        token: TokenTemplate,
    },
    StepDown {
        lease: usize,
        token: TokenTemplate,
        to: Option<usize>,
    },
    Inspect {
        lease: usize,
    },
    InspectNamespace,
    /// Ends the quarantine of the generation to which its client has attached, or of another.
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
        term: TermTemplate,
        record: usize,
        value: usize,
    },
    Read {
        lease: usize,
        record: usize,
    },
    Announce {
        lease: usize,
        token: TokenTemplate,
    },
    Heartbeat {
        group: usize,
        instance: usize,
        ttl: Duration,
        record: usize,
    },
    Leave {
        group: usize,
        instance: usize,
    },
    Instances {
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
        term: TermTemplate,
        ending: Option<usize>,
    },
    Notes {
        limit: usize,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Attach {
        client: usize,
        memory: MemoryTemplate,
        max_ttl: Duration,
        bootstrap: bool,
        durable: bool,
        observer: bool,
        stamp: u64,
    },
    Submit {
        client: usize,
        batch: Vec<RequestTemplate>,
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
        2 => Ending::Lost(Loss::Taken { holder: InstanceId::foreign("another program") }),
        _ => Ending::Lost(Loss::ClockStep),
    }
}

pub(crate) fn uses_short_span(template: &RequestTemplate) -> bool {
    match template {
        RequestTemplate::Acquire { ttl, .. }
        | RequestTemplate::TakeOver { ttl, .. }
        | RequestTemplate::Renew { ttl, .. }
        | RequestTemplate::HandOver { window: ttl, .. }
        | RequestTemplate::Heartbeat { ttl, .. } => *ttl == SHORT_SPAN,
        _ => false,
    }
}

pub(crate) fn takes_over_after_short(template: &RequestTemplate) -> bool {
    matches!(template, RequestTemplate::TakeOver { stale_after, .. } if *stale_after == SHORT_SPAN)
}
