//! Measures one lease and many leases.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenure::lease::LeaseSettings;
use tenure::store::{AttachRequest, Claim, Connection, Holding, Keyspace, LeaseRequest, Outcome, Reply, Request};
use tenure::{InstanceId, LeaseName, Nonce, Tenure, Term};
use tenure_testbed::RedisServer;

use crate::measure::{REST_BEFORE_HAND_OVER, measure_lag, median, micros, millis, quantile, resident, thread_cpu};
use crate::raw_redis::{RawRedis, RedisHandOver};
use crate::raw_sqlite::{FileHandOver, RawSqlite};
use crate::table::{Bar, BenchRow, BenchTable};

/// Size of a batch of the keeper.
const BATCH_SIZE: usize = 512;

/// Far longer than a batch takes.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Numbers of repetitions.
#[derive(Clone, Copy)]
struct LeaseSize {
    rounds: usize,
    pairs: usize,
    hand_overs: usize,
    leases: usize,
    many: usize,
    seconds: u64,
    crashes: usize,
}

const FULL: LeaseSize =
    LeaseSize { rounds: 5, pairs: 2_000, hand_overs: 600, leases: 10_000, many: 100_000, seconds: 12, crashes: 200 };
const QUICK: LeaseSize =
    LeaseSize { rounds: 3, pairs: 200, hand_overs: 50, leases: 2_000, many: 10_000, seconds: 2, crashes: 20 };

/// A store under test: a URL and the value that keeps the store alive.
enum StoreUnderTest {
    Redis(RedisServer),
    Sqlite(TempDir),
}

impl StoreUnderTest {
    fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("bench.db").display()),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Redis(_) => "Redis",
            Self::Sqlite(_) => "SQLite",
        }
    }
}

/// Names of the rows.
const HAND_OVER_ROW: &str = "hand-over, p99";
const PAIR_ROW: &str = "acquire + release";
const RENEW_ROW: &str = "renewing";
const TAKE_OVER_ROW: &str = "crash take-over, late beyond the ttl, p99";
const IDLE_ROW: &str = "keeper thread";
const MEMORY_ROW: &str = "client memory per held lease";

pub fn run(quick: bool, only: &str) -> Result<BenchTable, Box<dyn Error>> {
    let size = if quick { QUICK } else { FULL };
    let mut table = BenchTable::new("lease");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        for under_test in [StoreUnderTest::Redis(RedisServer::start()), StoreUnderTest::Sqlite(tempfile::tempdir()?)] {
            eprintln!("{}:", under_test.name());
            let wanted = |row: &str| format!("{}: {row}", under_test.name()).contains(only);
            if wanted(PAIR_ROW) {
                pairs(&under_test, size, &mut table).await?;
            }
            if wanted(HAND_OVER_ROW) {
                hand_overs(&under_test, size, &mut table).await?;
            }
            if wanted(RENEW_ROW) {
                renewals(&under_test, size, &mut table).await?;
            }
            if wanted(TAKE_OVER_ROW) {
                crashes(&under_test, size, &mut table).await?;
            }
            if wanted(IDLE_ROW) {
                idle_cpu(&under_test, size, &mut table).await?;
            }
            if wanted(MEMORY_ROW) {
                memory(&under_test, size, &mut table).await?;
            }
        }
        Ok::<(), Box<dyn Error>>(())
    })?;
    Ok(table)
}

async fn connect(url: &str, name: &str) -> Result<Tenure, Box<dyn Error>> {
    Ok(Tenure::builder(url).name(name).bootstrap().connect().await?)
}

/// Measures pairs of acquire and release, one after the other.
async fn pairs(under_test: &StoreUnderTest, size: LeaseSize, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    let tenure = connect(&under_test.url(), "bench").await?;
    let (mut values, mut raws) = (Vec::new(), Vec::new());
    let mut raw = RawStore::open(under_test).await?;
    for _ in 0..=size.rounds {
        let (mut spans, mut raw_spans) = (Vec::with_capacity(size.pairs), Vec::with_capacity(size.pairs));
        for _ in 0..size.pairs {
            raw_spans.push(micros(raw.pair().await?));
            let start = Instant::now();
            tenure.lease("pair").acquire().await?.release().await?;
            spans.push(micros(start.elapsed()));
        }
        values.push(median(spans));
        raws.push(median(raw_spans));
    }
    // The first round is a warm-up.
    table.add(BenchRow {
        name: format!("{}: {PAIR_ROW}", under_test.name()),
        value: median(values.split_off(1)),
        raw: Some(median(raws.split_off(1))),
        unit: "µs",
        bar: Bar::RatioAtMost(1.3),
    });
    tenure.shutdown().await;
    Ok(())
}

/// Measures the time from a release to the grant to the waiter, alternating with the raw store.
async fn hand_overs(
    under_test: &StoreUnderTest,
    size: LeaseSize,
    table: &mut BenchTable,
) -> Result<(), Box<dyn Error>> {
    let (one, two) = (connect(&under_test.url(), "one").await?, connect(&under_test.url(), "two").await?);
    let mut raw = RawStore::open(under_test).await?.into_hand_over().await?;
    let (mut values, mut raws) = (Vec::new(), Vec::new());
    for _ in 0..=size.rounds {
        let (mut spans, mut raw_spans) = (Vec::new(), Vec::new());
        for _ in 0..size.hand_overs {
            raw_spans.push(micros(raw.measure_once().await?));
            spans.push(micros(hand_over(&one, &two).await?));
        }
        values.push(quantile(&mut spans, 0.99));
        raws.push(quantile(&mut raw_spans, 0.99));
    }
    table.add(BenchRow {
        name: format!("{}: {HAND_OVER_ROW}", under_test.name()),
        value: median(values.split_off(1)),
        raw: Some(median(raws.split_off(1))),
        unit: "µs",
        bar: Bar::RatioAtMost(1.5),
    });
    one.shutdown().await;
    two.shutdown().await;
    Ok(())
}

async fn hand_over(holder: &Tenure, waiter: &Tenure) -> Result<Duration, Box<dyn Error>> {
    let term = holder.lease("hand-over").acquire().await?;
    let waiting = tokio::spawn({
        let tenure = waiter.clone();
        async move {
            let term = tenure.lease("hand-over").acquire().await;
            (term, Instant::now())
        }
    });
    // The waiter has sent its request and waits.
    tokio::time::sleep(REST_BEFORE_HAND_OVER).await;
    let start = Instant::now();
    term.release().await?;
    let (next, now) = waiting.await?;
    next?.release().await?;
    Ok(now - start)
}

/// Measures the renewals per second through a Tenure store, in batches as the keeper sends them, next to the raw
/// pipelined rate, batch by batch.
async fn renewals(under_test: &StoreUnderTest, size: LeaseSize, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    let mut raw = RawStore::open(under_test).await?;
    let store = tenure::store::open(&under_test.url(), &Keyspace::default())?;
    let connection = store.attach(AttachRequest { bootstrap: true, ..AttachRequest::new(fastrand::u64(..)) }).await?;
    let (mut values, mut raws) = (Vec::new(), Vec::new());
    for round in 0..=size.rounds {
        let held = raw.acquire_many(size.leases, round).await?;
        let renewals = acquire_in_store(&*connection, size.leases, round).await?;
        let (mut took, mut raw_took) = (Duration::ZERO, Duration::ZERO);
        for (batch, raw_batch) in renewals.chunks(BATCH_SIZE).zip(held.chunks(BATCH_SIZE)) {
            raw_took += raw.renew(raw_batch).await?;
            let batch = batch.to_vec();
            let start = Instant::now();
            let outcomes = connection.submit(batch, SUBMIT_TIMEOUT).await;
            took += start.elapsed();
            if !outcomes.iter().all(|outcome| matches!(outcome, Outcome::Answered(Reply::Renewed { .. }))) {
                return Err("a renewal got no reply".into());
            }
        }
        values.push(size.leases as f64 / took.as_secs_f64());
        raws.push(size.leases as f64 / raw_took.as_secs_f64());
    }
    table.add(BenchRow {
        name: format!("{}: {RENEW_ROW} {} leases", under_test.name(), size.leases),
        value: median(values.split_off(1)),
        raw: Some(median(raws.split_off(1))),
        unit: "/s",
        bar: Bar::RatioAtLeast(0.8),
    });
    Ok(())
}

/// Acquires this many leases and returns their renewals. Leases do not fall due in the order of their names.
async fn acquire_in_store(
    connection: &dyn Connection,
    count: usize,
    round: usize,
) -> Result<Vec<Request>, Box<dyn Error>> {
    let mut renewals = Vec::with_capacity(count);
    for group in (0..count).collect::<Vec<_>>().chunks(BATCH_SIZE) {
        let claims = group.iter().map(|number| claim(&format!("renew-{round}-{number:06}")));
        let claims = claims.collect::<Result<Vec<_>, _>>()?;
        let requests =
            claims.iter().map(|claim| LeaseRequest::Acquire { claim: claim.clone(), ended: None }.into()).collect();
        let outcomes = connection.submit(requests, SUBMIT_TIMEOUT).await;
        for (claim, outcome) in claims.into_iter().zip(outcomes) {
            let Outcome::Answered(Reply::Granted(grant)) = outcome else {
                return Err(format!("{} was not granted: {outcome:?}", claim.name).into());
            };
            let holding = Holding { name: claim.name, holder: claim.holder, token: grant.token };
            renewals.push(LeaseRequest::Renew { holding, ttl: claim.ttl, progressed: false }.into());
        }
    }
    fastrand::shuffle(&mut renewals);
    Ok(renewals)
}

fn claim(name: &str) -> Result<Claim, Box<dyn Error>> {
    let (name, holder) = (LeaseName::lease(name)?, InstanceId::new("renewing")?);
    Ok(Claim { name, holder, nonce: Nonce::new(fastrand::u128(..)), ttl: Duration::from_secs(30) })
}

/// Measures the delay from the expiry of a dead holder's lease to the grant to a waiter, next to a thread that only
/// sleeps until then.
async fn crashes(under_test: &StoreUnderTest, size: LeaseSize, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    let ttl = Duration::from_millis(1_000);
    let waiter = connect(&under_test.url(), "waiter").await?;
    let mut late = Vec::new();
    let mut moments = Vec::new();
    let (sender, receiver) = std::sync::mpsc::channel();
    let probe = measure_lag(receiver);
    let mut waiting = Vec::new();
    // A killed holder: its runtime, its keeper and its connection are gone, and its keeper gets no notice.
    for number in 0..size.crashes {
        let name = format!("crashed-{number}");
        let held = RawStore::write_dead_lease(under_test, &name, ttl).await?;
        moments.push(held);
        sender.send(held)?;
        let tenure = waiter.clone();
        waiting.push(tokio::spawn(async move {
            let term = tenure.lease(&name).acquire().await;
            (term, Instant::now())
        }));
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    drop(sender);
    let mut terms = Vec::new();
    for (task, gone) in waiting.into_iter().zip(moments) {
        let (term, now) = task.await?;
        late.push(millis(now.saturating_duration_since(gone)));
        terms.push(term?);
    }
    let mut lag = probe.join().map_err(|_| "the lag probe panicked")?;
    table.add(BenchRow {
        name: format!("{}: {TAKE_OVER_ROW}", under_test.name()),
        value: quantile(&mut late, 0.99),
        raw: Some(quantile(&mut lag, 0.99)),
        unit: "ms",
        // The jitter after an expiry is at most 25 ms.
        bar: Bar::BeyondRaw(30.0),
    });
    drop(terms);
    waiter.shutdown().await;
    Ok(())
}

/// Measures the keeper's CPU time with many idle leases.
async fn idle_cpu(under_test: &StoreUnderTest, size: LeaseSize, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    let tenure = connect(&under_test.url(), "resting").await?;
    let terms = acquire_many(&tenure, "rest", size.leases, LeaseSettings::default()).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, start) = (thread_cpu("tenure-keeper")?, Instant::now());
    tokio::time::sleep(Duration::from_secs(size.seconds)).await;
    let used = thread_cpu("tenure-keeper")? - before;
    table.add(BenchRow {
        name: format!("{}: {IDLE_ROW}, {} leases of 30 s", under_test.name(), size.leases),
        value: 100.0 * used / start.elapsed().as_secs_f64(),
        raw: None,
        unit: "% of a core",
        bar: Bar::AtMost(2.0),
    });
    drop(terms);
    tenure.shutdown().await;
    Ok(())
}

/// Measures the client memory per held lease.
async fn memory(under_test: &StoreUnderTest, size: LeaseSize, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    // In a separate process: memory that other measurements left allocated would hide the growth.
    let child = std::process::Command::new(std::env::current_exe()?)
        .args(["memory", &under_test.url(), &size.many.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    let used: f64 = String::from_utf8(child.stdout)?.trim().parse()?;
    table.add(BenchRow {
        name: format!("{}: {MEMORY_ROW}, {} held", under_test.name(), size.many),
        value: used / size.many as f64,
        raw: None,
        unit: "bytes",
        bar: Bar::AtMost(600.0),
    });
    Ok(())
}

/// Holds this many leases, and returns the bytes that they take.
pub fn measure_memory(url: &str, count: usize) -> Result<f64, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let tenure = connect(url, "holding").await?;
        // Hold some leases first, so that one-time allocations are not counted.
        let _first = acquire_many(&tenure, "warm", 1_000, LeaseSettings::default()).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = resident()?;
        let terms = acquire_many(&tenure, "many", count, LeaseSettings::default()).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let used = resident()? - before;
        drop(terms);
        tenure.shutdown().await;
        Ok(used)
    })
}

async fn acquire_many(
    tenure: &Tenure,
    prefix: &str,
    count: usize,
    settings: LeaseSettings,
) -> Result<Vec<Term>, Box<dyn Error>> {
    let mut terms = Vec::with_capacity(count);
    // In groups, so that the requests themselves take little memory.
    for group in (0..count).collect::<Vec<_>>().chunks(BATCH_SIZE) {
        let claims =
            group.iter().map(|number| tenure.lease(format!("{prefix}-{number:06}")).settings(settings).acquire());
        for term in futures_util::future::join_all(claims).await {
            terms.push(term?);
        }
    }
    Ok(terms)
}

/// The raw store.
enum RawStore {
    Redis(Box<RawRedis>),
    Sqlite(RawSqlite, TempDir),
}

impl RawStore {
    async fn open(under_test: &StoreUnderTest) -> Result<Self, Box<dyn Error>> {
        match under_test {
            StoreUnderTest::Redis(server) => {
                connect(&under_test.url(), "entering").await?.shutdown().await;
                Ok(Self::Redis(Box::new(RawRedis::connect(server).await?)))
            }
            StoreUnderTest::Sqlite(_) => {
                let folder = tempfile::tempdir()?;
                Ok(Self::Sqlite(RawSqlite::open(&folder.path().join("raw.db"))?, folder))
            }
        }
    }

    /// Times an acquisition and a release.
    async fn pair(&mut self) -> Result<Duration, Box<dyn Error>> {
        let start = Instant::now();
        match self {
            Self::Redis(raw) => {
                let token = raw.acquire("lease:raw-pair", "raw").await?;
                raw.release("lease:raw-pair", "raw", &token).await?;
            }
            Self::Sqlite(raw, _) => {
                let token = raw.call(|file| file.acquire("lease:raw-pair")).await?;
                raw.call(move |file| file.release("lease:raw-pair", token)).await?;
            }
        }
        Ok(start.elapsed())
    }

    /// Turns it into a pair of clients that hand a lease over.
    async fn into_hand_over(self) -> Result<RawHandOver, Box<dyn Error>> {
        Ok(match self {
            Self::Redis(raw) => RawHandOver::Redis(Box::new(RedisHandOver::new(*raw).await?)),
            Self::Sqlite(raw, folder) => {
                RawHandOver::Sqlite(FileHandOver::new(raw, &folder.path().join("raw.db"))?, folder)
            }
        })
    }

    /// Acquires this many leases and returns their keys and tokens.
    async fn acquire_many(&mut self, count: usize, round: usize) -> Result<Vec<(String, String)>, Box<dyn Error>> {
        let mut keys: Vec<String> = (0..count).map(|number| format!("lease:raw-{round}-{number:06}")).collect();
        fastrand::shuffle(&mut keys);
        match self {
            Self::Redis(raw) => {
                let mut leases = Vec::with_capacity(count);
                for key in keys {
                    let token = raw.acquire(&key, "raw").await?;
                    leases.push((key, token));
                }
                Ok(leases)
            }
            Self::Sqlite(raw, _) => {
                let all = keys.clone();
                raw.call(move |file| file.insert_leases(&all)).await?;
                Ok(keys.into_iter().map(|key| (key, String::new())).collect())
            }
        }
    }

    /// Renews these leases, pipelined or in one transaction.
    async fn renew(&mut self, leases: &[(String, String)]) -> Result<Duration, Box<dyn Error>> {
        match self {
            Self::Redis(raw) => raw.renew("raw", leases).await,
            Self::Sqlite(raw, _) => {
                let keys: Vec<String> = leases.iter().map(|(key, _)| key.clone()).collect();
                let start = Instant::now();
                raw.call(move |file| file.renew(&keys)).await?;
                Ok(start.elapsed())
            }
        }
    }

    /// Writes a lease of a dead holder and returns when it expires.
    async fn write_dead_lease(
        under_test: &StoreUnderTest,
        name: &str,
        ttl: Duration,
    ) -> Result<Instant, Box<dyn Error>> {
        match under_test {
            StoreUnderTest::Redis(server) => {
                let key = format!("lease:{name}");
                server.command(&["SET", &key, "gone", "NX", "PX", &ttl.as_millis().to_string()]);
                Ok(Instant::now() + ttl)
            }
            StoreUnderTest::Sqlite(folder) => write_dead_lease_to_file(&folder.path().join("bench.db"), name, ttl),
        }
    }
}

/// Hand-overs on the raw store.
enum RawHandOver {
    Redis(Box<RedisHandOver>),
    Sqlite(FileHandOver, #[expect(dead_code, reason = "the folder goes with it")] TempDir),
}

impl RawHandOver {
    async fn measure_once(&mut self) -> Result<Duration, Box<dyn Error>> {
        match self {
            Self::Redis(raw) => raw.measure_once().await,
            Self::Sqlite(raw, _) => raw.measure_once().await,
        }
    }
}

/// Writes a lease of a dead holder.
fn write_dead_lease_to_file(path: &Path, name: &str, ttl: Duration) -> Result<Instant, Box<dyn Error>> {
    let connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    let epoch: i64 = connection.query_row("SELECT epoch FROM host", [], |row| row.get(0))?;
    let uptime = std::fs::read_to_string("/proc/uptime")?;
    let seconds: f64 = uptime.split_whitespace().next().ok_or("no uptime")?.parse()?;
    let expires = epoch + (seconds * 1e6) as i64 + i64::try_from(ttl.as_micros())?;
    connection.execute(
        "INSERT INTO leases (namespace, key, holder, expires) VALUES ('', ?1, 'gone', ?2)",
        rusqlite::params![format!("lease:{name}"), expires],
    )?;
    Ok(Instant::now() + ttl)
}
