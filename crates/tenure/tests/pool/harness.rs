//! Shared parts of the scenarios: instances of a fleet, in this process or as child processes, and an uninvolved
//! witness of all work.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use tenure::pool::{Pool, Target};
use tenure::{Tenure, TermHandle, Token, WorkError};
use tenure_testbed::{LagProbe, TestProcess};

/// Timeout for anything that should happen.
pub fn test_timeout() -> Duration {
    Duration::from_secs(50) + ttl() * 5
}

/// The ttl of scenarios in which leases expire: short, unless they run with the ttl of a real fleet
/// (`cargo xtask soak`).
pub fn ttl() -> Duration {
    static TTL: LazyLock<Duration> = LazyLock::new(|| {
        let seconds = std::env::var("TENURE_TEST_TTL").ok().and_then(|seconds| seconds.parse().ok());
        Duration::from_secs(seconds.unwrap_or(2))
    });
    *TTL
}

/// Bound on the delay from the expiry of a dead instance's lease until its target is held again: `bench pool` measures
/// it, and docs/pools.md promises it.
pub const MAX_TAKEOVER_DELAY: Duration = Duration::from_millis(50);

/// Interval between two ticks of a target.
pub const TICK: Duration = Duration::from_millis(200);

/// One unit of work, as the witness saw it.
#[derive(Clone, Debug)]
pub struct WorkUnit {
    pub worker: String,
    pub token: Token,
    /// Due time of the slot, in milliseconds.
    pub due: u64,
    pub began: Instant,
    /// `None` while it runs.
    pub ended: Option<Instant>,
}

/// A server that the work connects to: it sees which instance works, and when that work ends, however it ends.
pub struct Witness {
    address: SocketAddr,
    seen: Arc<Mutex<BTreeMap<String, Vec<WorkUnit>>>>,
}

impl Witness {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<BTreeMap<String, Vec<WorkUnit>>>> = Arc::default();
        let witness = seen.clone();
        std::thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let seen = witness.clone();
                std::thread::spawn(move || record_unit(caller, &seen));
            }
        });
        Self { address, seen }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All units by target, in the order of their start.
    pub fn seen(&self) -> BTreeMap<String, Vec<WorkUnit>> {
        self.seen.lock().unwrap().clone()
    }

    /// The last worker of each target since then.
    pub fn since(&self, then: Instant) -> BTreeMap<String, String> {
        let seen = self.seen();
        let latest = seen.iter().filter_map(|(target, units)| Some((target, units.last()?)));
        latest
            .filter(|(_, unit)| unit.began > then)
            .map(|(target, unit)| (target.clone(), unit.worker.clone()))
            .collect()
    }

    /// Asserts that no slot was skipped since then.
    pub fn check_no_slot_missed(&self, since: Instant, probe: &LagProbe) {
        let step = TICK.as_millis() as u64;
        // A machine that stands still may miss as many slots as it stood still for, and one more for each end of that.
        let stalled = probe.total_stall(TICK / 4).as_millis() as u64;
        let allowed = if stalled == 0 { 0 } else { stalled / step + 2 };
        for (target, units) in self.seen() {
            let pairs = units.windows(2).filter(|pair| pair[1].began > since);
            let missed: u64 = pairs.map(|pair| (pair[1].due - pair[0].due) / step - 1).sum();
            assert!(missed <= allowed, "{target}: {missed} slots missed; the machine stood still for {stalled} ms");
        }
    }

    /// Asserts that no two units of a target overlap, that no slot runs twice, and that tokens never decrease.
    pub fn check(&self) {
        self.check_except(&[]);
    }

    /// Like [`Self::check`], but these processes were stopped for a while: their running units may seem to continue,
    /// and for each target they may start one more unit whose check had passed before the stop.
    pub fn check_except(&self, stopped: &[String]) {
        for (target, mut units) in self.seen() {
            let mut latest = Token::ZERO;
            let mut late: BTreeMap<String, usize> = BTreeMap::new();
            units.retain(|unit| {
                let is_late = unit.token < latest && stopped.contains(&unit.worker);
                if is_late {
                    *late.entry(unit.worker.clone()).or_default() += 1;
                }
                latest = latest.max(unit.token);
                !is_late
            });
            assert!(late.values().all(|count| *count <= 1), "{target}: work begins after a stop: {late:?}");
            for pair in units.windows(2).filter(|pair| !stopped.contains(&pair[0].worker)) {
                let [first, second] = pair else { continue };
                assert!(second.token >= first.token, "{target}: tokens decreased: {first:?} {second:?}");
                assert!(second.due > first.due, "{target}: a slot ran twice: {first:?} {second:?}");
                let apart = first.ended.is_some_and(|ended| ended <= second.began);
                assert!(apart, "{target}: two units overlap: {first:?} {second:?}");
            }
        }
    }
}

fn record_unit(caller: TcpStream, seen: &Mutex<BTreeMap<String, Vec<WorkUnit>>>) {
    let mut reader = BufReader::new(caller);
    let mut line = String::new();
    let Ok(_) = reader.read_line(&mut line) else { return };
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[target, worker, token, due] = &words[..] else { return };
    let unit = WorkUnit {
        worker: worker.to_owned(),
        token: Token::new(token.parse().unwrap()).unwrap(),
        due: due.parse().unwrap(),
        began: Instant::now(),
        ended: None,
    };
    let at = {
        let mut seen = seen.lock().unwrap();
        let units = seen.entry(target.to_owned()).or_default();
        units.push(unit);
        units.len() - 1
    };
    // Acknowledge, so that the worker knows that the unit was seen. Then wait for its end, or for that of its process.
    let _ = reader.get_mut().write_all(b"seen\n");
    let _ = reader.read_to_end(&mut Vec::new());
    if let Some(units) = seen.lock().unwrap().get_mut(target) {
        units[at].ended = Some(Instant::now());
    }
    // Close only now: the worker waits for it.
    drop(reader);
}

/// Works on a target until the term ends.
async fn work(witness: SocketAddr, worker: String, target: Target, lease: TermHandle) -> Result<(), WorkError> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut ticks = lease.every(TICK);
    while let Some(tick) = ticks.next().await {
        let line = format!("{target} {worker} {} {}\n", lease.token(), tick.due_millis());
        let Ok(mut stream) = tokio::net::TcpStream::connect(witness).await else { continue };
        let _ = stream.write_all(line.as_bytes()).await;
        let _ = stream.read(&mut [0; 5]).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        // The unit ends when the witness closes the connection. Otherwise the witness might see the next unit before
        // the end of this one.
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    Ok(())
}

/// One instance of a fleet.
pub struct TestInstance {
    pub tenure: Tenure,
    pub pool: Pool,
}

impl TestInstance {
    pub async fn join(url: &str, name: &str, witness: SocketAddr, targets: &[String]) -> Self {
        let tenure = Tenure::builder(url).name(name).longest_ttl(ttl()).bootstrap().connect().await.unwrap();
        let worker = name.to_owned();
        let pool = tenure.pool("poll").targets(targets).ttl(ttl());
        let pool = pool.run(move |target, lease| work(witness, worker.clone(), target, lease)).start().unwrap();
        Self { tenure, pool }
    }

    pub fn count(&self) -> usize {
        self.pool.owned().len()
    }
}

/// Environment variable that configures a child process.
const INSTANCE_ENV: &str = "TENURE_TEST_MEMBER";

/// Spawns an instance as a child process.
pub fn spawn_instance(url: &str, name: &str, witness: SocketAddr, targets: usize) -> TestProcess {
    TestProcess::start("harness::instance_process", INSTANCE_ENV, &format!("{url} {name} {witness} {targets}"))
}

/// An instance of a fleet that runs until it is stopped.
#[tokio::test]
#[ignore = "a part that other tests start as a process"]
async fn instance_process() {
    let Ok(part) = std::env::var(INSTANCE_ENV) else { return };
    let words: Vec<&str> = part.split(' ').collect();
    let (url, name, witness, count) = (words[0], words[1], words[2].parse().unwrap(), words[3].parse().unwrap());
    let mut ended = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    let instance = TestInstance::join(url, name, witness, &targets(count)).await;
    ended.recv().await;
    instance.pool.stop().await;
    instance.tenure.shutdown().await;
}

pub fn targets(count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("endpoint-{n}")).collect()
}

/// Waits until a condition holds.
pub async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < test_timeout(), "timed out waiting until: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the instances hold these numbers of targets, in any order.
pub async fn wait_for_counts(instances: &[&TestInstance], expected: &[usize]) {
    let counts = || {
        let mut counts: Vec<usize> = instances.iter().map(|instance| instance.count()).collect();
        counts.sort_unstable();
        counts
    };
    let start = Instant::now();
    while counts() != expected {
        assert!(start.elapsed() < test_timeout(), "{:?} instead of {expected:?}", counts());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
