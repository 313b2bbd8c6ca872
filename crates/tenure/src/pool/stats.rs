//! Numbers of a pool: how long moves of targets take, and how often work fails.

use std::sync::atomic::AtomicU64;

use crate::histogram::Histogram;

/// Numbers of a pool on this instance, since it started.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let pool = tenure.pool("poll").targets(["eu-1"]).run(async |_, _| Err("no route".into())).start()?;
/// # while pool.stats().work_errors.load(Ordering::Relaxed) == 0 {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// let stats = pool.stats();
/// assert_eq!(stats.work_errors.load(Ordering::Relaxed), 1); // it is restarted after a backoff
/// println!("half of all handovers took at most {:?}", stats.handovers.snapshot().quantile(0.5));
/// # pool.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// From the decision to hand a target over until its next holder has it, measured by the giver.
    pub handovers: Histogram,
    /// From the detection of a missing holder until the next one has its target, measured by the next holder.
    pub takeovers: Histogram,
    /// How often work returned an error.
    pub work_errors: AtomicU64,
    /// How often work panicked.
    pub work_panics: AtomicU64,
}
