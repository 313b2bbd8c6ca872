//! Runs cases.

use std::future::Future;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::harness::CaseHarness;
use super::{StoreFixture, cases};
use crate::store::BoxFuture;

/// A case that takes longer than this is considered hung. None takes a tenth of it.
const CASE_TIMEOUT: Duration = Duration::from_secs(300);

/// One required behaviour of a store.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// # struct Mine(tenure::store::memory::MemoryStore);
/// # impl tenure::testing::StoreFixture for Mine {
/// #     fn store(&self) -> std::sync::Arc<dyn tenure::store::Store> {
/// #         std::sync::Arc::new(self.0.clone())
/// #     }
/// #     fn advance_time(&self, span: std::time::Duration) -> tenure::store::BoxFuture<'_, ()> {
/// #         Box::pin(tokio::time::sleep(span))
/// #     }
/// #     fn inject(
/// #         &self,
/// #         _: tenure::testing::StoreFault,
/// #     ) -> tenure::store::BoxFuture<'_, tenure::testing::FaultInjection> {
/// #         Box::pin(async { tenure::testing::FaultInjection::Unsupported })
/// #     }
/// # }
/// # async fn mine() -> Mine {
/// #     Mine(tenure::store::memory::MemoryStore::default())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// for case in tenure::testing::cases().into_iter().filter(|case| case.group() == "sessions") {
///     println!("{}: {:?}", case.name(), case.run(&mine().await).await); // panics when the store fails the case
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    group: &'static str,
    body: Body,
}

type Body = for<'a> fn(&'a CaseHarness<'a>) -> BoxFuture<'a, Verdict>;

/// The result of a case that did not fail. A failing case panics.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// # struct Mine(tenure::store::memory::MemoryStore);
/// # impl tenure::testing::StoreFixture for Mine {
/// #     fn store(&self) -> std::sync::Arc<dyn tenure::store::Store> {
/// #         std::sync::Arc::new(self.0.clone())
/// #     }
/// #     fn advance_time(&self, span: std::time::Duration) -> tenure::store::BoxFuture<'_, ()> {
/// #         Box::pin(tokio::time::sleep(span))
/// #     }
/// #     fn inject(
/// #         &self,
/// #         _: tenure::testing::StoreFault,
/// #     ) -> tenure::store::BoxFuture<'_, tenure::testing::FaultInjection> {
/// #         Box::pin(async { tenure::testing::FaultInjection::Unsupported })
/// #     }
/// # }
/// # async fn mine() -> Mine {
/// #     Mine(tenure::store::memory::MemoryStore::default())
/// # }
/// use tenure::testing::{Verdict, run_case};
///
/// assert_eq!(run_case("a_free_lease_is_granted", mine), Verdict::Passed);
/// let verdict = run_case("tokens_grow_across_a_flush", mine); // this fixture cannot flush
/// assert_eq!(verdict, Verdict::NotChecked { needs: "Flush".to_owned() });
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The store behaves as required.
    Passed,
    /// The fixture does not support what the case needs, so the behaviour is unknown.
    NotChecked {
        /// What the fixture does not support.
        needs: String,
    },
}

/// The results of all cases.
///
/// ```no_run
/// # #[cfg(feature = "memory")] {
/// # struct Mine(tenure::store::memory::MemoryStore);
/// # impl tenure::testing::StoreFixture for Mine {
/// #     fn store(&self) -> std::sync::Arc<dyn tenure::store::Store> {
/// #         std::sync::Arc::new(self.0.clone())
/// #     }
/// #     fn advance_time(&self, span: std::time::Duration) -> tenure::store::BoxFuture<'_, ()> {
/// #         Box::pin(tokio::time::sleep(span))
/// #     }
/// #     fn inject(
/// #         &self,
/// #         _: tenure::testing::StoreFault,
/// #     ) -> tenure::store::BoxFuture<'_, tenure::testing::FaultInjection> {
/// #         Box::pin(async { tenure::testing::FaultInjection::Unsupported })
/// #     }
/// # }
/// # async fn mine() -> Mine {
/// #     Mine(tenure::store::memory::MemoryStore::default())
/// # }
/// let report = tenure::testing::run_all(mine);
/// println!("{} cases passed", report.passed.len());
/// for (case, needs) in &report.not_checked {
///     println!("{case} is not checked: the fixture does not support {needs}");
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuiteReport {
    /// The cases that passed.
    pub passed: Vec<&'static str>,
    /// The unchecked cases, and what they need.
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

    /// The topic of the case: the name of its file.
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// Runs the case on a fresh fixture, in the current tokio runtime.
    ///
    /// # Panics
    /// When the store does not behave as required.
    pub async fn run(&self, fixture: &dyn StoreFixture) -> Verdict {
        let harness = CaseHarness::new(fixture);
        let Ok(verdict) = tokio::time::timeout(CASE_TIMEOUT, (self.body)(&harness)).await else {
            panic!("{} did not end within {CASE_TIMEOUT:?}", self.name);
        };
        if let Verdict::NotChecked { needs } = &verdict {
            // Written past `eprintln!`, whose output the test harness discards when a test passes. A failed write is
            // ignored: then the stream has no reader.
            let note = format!("NOT CHECKED: {}: the fixture does not support {needs}\n", self.name);
            let _ = std::io::stderr().write_all(note.as_bytes());
        }
        verdict
    }
}

/// Runs the case of this name in its own runtime, on the fixture that `make` creates.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// # struct Mine(tenure::store::memory::MemoryStore);
/// # impl tenure::testing::StoreFixture for Mine {
/// #     fn store(&self) -> std::sync::Arc<dyn tenure::store::Store> {
/// #         std::sync::Arc::new(self.0.clone())
/// #     }
/// #     fn advance_time(&self, span: std::time::Duration) -> tenure::store::BoxFuture<'_, ()> {
/// #         Box::pin(tokio::time::sleep(span))
/// #     }
/// #     fn inject(
/// #         &self,
/// #         _: tenure::testing::StoreFault,
/// #     ) -> tenure::store::BoxFuture<'_, tenure::testing::FaultInjection> {
/// #         Box::pin(async { tenure::testing::FaultInjection::Unsupported })
/// #     }
/// # }
/// # async fn mine() -> Mine {
/// #     Mine(tenure::store::memory::MemoryStore::default())
/// # }
/// tenure::testing::run_case("a_released_lease_is_free_at_once", mine); // `mine` is an async function
/// # }
/// ```
///
/// # Panics
/// When the store does not behave as required, or when there is no such case.
pub fn run_case<M, F>(name: &str, make: M) -> Verdict
where
    M: FnOnce() -> F,
    F: Future,
    F::Output: StoreFixture,
{
    let Some(case) = cases().into_iter().find(|case| case.name == name) else {
        panic!("no such conformance case: {name:?}");
    };
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(async {
            let fixture = make().await;
            case.run(&fixture).await
        }),
        Err(error) => panic!("cannot start a runtime for {name}: {error}"),
    }
}

/// Runs every case, one after the other, each on its own fixture.
///
/// ```no_run
/// # #[cfg(feature = "memory")] {
/// # struct Mine(tenure::store::memory::MemoryStore);
/// # impl tenure::testing::StoreFixture for Mine {
/// #     fn store(&self) -> std::sync::Arc<dyn tenure::store::Store> {
/// #         std::sync::Arc::new(self.0.clone())
/// #     }
/// #     fn advance_time(&self, span: std::time::Duration) -> tenure::store::BoxFuture<'_, ()> {
/// #         Box::pin(tokio::time::sleep(span))
/// #     }
/// #     fn inject(
/// #         &self,
/// #         _: tenure::testing::StoreFault,
/// #     ) -> tenure::store::BoxFuture<'_, tenure::testing::FaultInjection> {
/// #         Box::pin(async { tenure::testing::FaultInjection::Unsupported })
/// #     }
/// # }
/// # async fn mine() -> Mine {
/// #     Mine(tenure::store::memory::MemoryStore::default())
/// # }
/// let report = tenure::testing::run_all(mine); // panics when the store fails a case
/// assert_eq!(report.not_checked, []); // the fixture supports every fault
/// # }
/// ```
///
/// # Panics
/// When the store does not behave as required: after the last case, with the names of all failed cases.
pub fn run_all<M, F>(make: M) -> SuiteReport
where
    M: Fn() -> F,
    F: Future,
    F::Output: StoreFixture,
{
    let mut report = SuiteReport::default();
    let mut failed = Vec::new();
    for case in cases() {
        // Nothing of a failed case is reused: the next one has its own fixture.
        match catch_unwind(AssertUnwindSafe(|| run_case(case.name, &make))) {
            Ok(Verdict::Passed) => report.passed.push(case.name),
            Ok(Verdict::NotChecked { needs }) => report.not_checked.push((case.name, needs)),
            Err(_) => failed.push(case.name),
        }
    }
    assert!(failed.is_empty(), "the store fails {} conformance cases: {}", failed.len(), failed.join(", "));
    report
}
