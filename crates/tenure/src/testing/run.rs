//! Running cases.

use std::future::Future;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::harness::CaseHarness;
use super::{StoreFixture, cases};
use crate::store::BoxFuture;

/// After this long a case is taken to hang. None takes a tenth of it.
const CASE_TIMEOUT: Duration = Duration::from_secs(300);

/// One behaviour that a store must have.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    group: &'static str,
    body: Body,
}

type Body = for<'a> fn(&'a CaseHarness<'a>) -> BoxFuture<'a, Verdict>;

/// What became of a case that did not fail. One that fails panics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The store behaves.
    Passed,
    /// The subject does not support what the case needs, so nothing is known.
    NotChecked {
        /// What it does not support.
        needs: String,
    },
}

/// What became of all cases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuiteReport {
    /// The cases that passed.
    pub passed: Vec<&'static str>,
    /// The cases that could not be checked, and what they need.
    pub not_checked: Vec<(&'static str, String)>,
}

impl Case {
    pub(super) fn new(group: &'static str, name: &'static str, body: Body) -> Self {
        Self { name, group, body }
    }

    /// The behaviour, as an identifier.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What the case is about: the file it stands in.
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// Runs the case on a fresh fixture, in whatever tokio runtime this is called in.
    ///
    /// # Panics
    /// When the store does not behave.
    pub async fn run(&self, fixture: &dyn StoreFixture) -> Verdict {
        let harness = CaseHarness::new(fixture);
        let Ok(verdict) = tokio::time::timeout(CASE_TIMEOUT, (self.body)(&harness)).await else {
            panic!("{} did not end within {CASE_TIMEOUT:?}", self.name);
        };
        if let Verdict::NotChecked { needs } = &verdict {
            // Written past `eprintln!`, which the test harness keeps to itself when a test passes. When nobody reads
            // it there is nobody to tell.
            let note = format!("NOT CHECKED: {}: the subject does not support {needs}\n", self.name);
            let _ = std::io::stderr().write_all(note.as_bytes());
        }
        verdict
    }
}

/// Runs the case of this name in a runtime of its own, on the fixture that `make` makes.
///
/// # Panics
/// When the store does not behave, or when there is no such case.
pub fn run_case<M, F>(name: &str, make: M) -> Verdict
where
    M: FnOnce() -> F,
    F: Future,
    F::Output: StoreFixture,
{
    let Some(case) = cases().into_iter().find(|case| case.name == name) else {
        panic!("there is no conformance case {name:?}");
    };
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(async {
            let fixture = make().await;
            case.run(&fixture).await
        }),
        Err(error) => panic!("no runtime for {name}: {error}"),
    }
}

/// Runs every case, one after the other, each on a fixture of its own.
///
/// # Panics
/// When the store does not behave: after the last case, with the names of all that failed.
pub fn run_all<M, F>(make: M) -> SuiteReport
where
    M: Fn() -> F,
    F: Future,
    F::Output: StoreFixture,
{
    let mut report = SuiteReport::default();
    let mut failed = Vec::new();
    for case in cases() {
        // Nothing of a failed case is used again: the next one has a fixture of its own.
        match catch_unwind(AssertUnwindSafe(|| run_case(case.name, &make))) {
            Ok(Verdict::Passed) => report.passed.push(case.name),
            Ok(Verdict::NotChecked { needs }) => report.not_checked.push((case.name, needs)),
            Err(_) => failed.push(case.name),
        }
    }
    assert!(failed.is_empty(), "the store fails {} conformance cases: {}", failed.len(), failed.join(", "));
    report
}
