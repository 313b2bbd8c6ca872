//! Measures how long a fleet takes to balance its targets, and the cost for the server.

use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use tenure::placement::{InstanceLoad, Presence, TargetScore, plan_handoffs, quotas};
use tenure::pool::Pool;
use tenure::{InstanceId, Tenure};
use tenure_testbed::RedisServer;

use crate::measure::{self, commands_sent, millis, quantile, server_cpu, server_memory};
use crate::raw_redis::RawRedis;
use crate::table::{Bar, BenchRow, BenchTable};
use crate::takeover;

/// Instances, targets and ttl of a fleet, and the time of observation once it has settled.
pub struct PoolSize {
    pub instances: usize,
    pub targets: usize,
    pub ttl: Duration,
    pub watched_for: Duration,
}

impl PoolSize {
    fn title(&self) -> String {
        format!("{} targets on {} instances", self.targets, self.instances)
    }
}

const FULL_SIZES: [PoolSize; 2] = [
    PoolSize { instances: 10, targets: 100_000, ttl: Duration::from_secs(30), watched_for: Duration::from_secs(30) },
    PoolSize { instances: 100, targets: 10_000, ttl: Duration::from_secs(30), watched_for: Duration::from_secs(30) },
];
const QUICK_SIZES: [PoolSize; 1] =
    [PoolSize { instances: 5, targets: 1_000, ttl: Duration::from_secs(6), watched_for: Duration::from_secs(6) }];

/// After this long the fleet will not settle.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(300);

pub fn run(quick: bool, only: &str) -> Result<BenchTable, Box<dyn Error>> {
    let mut table = BenchTable::new("pool");
    if "placement".contains(only) {
        placement(&mut table)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let sizes = if quick { QUICK_SIZES.as_slice() } else { FULL_SIZES.as_slice() };
        let chosen = sizes.iter().filter(|size| "fleet".contains(only) || size.title().contains(only));
        for (n, size) in chosen.enumerate() {
            fleet(size, n == 0, &mut table).await?;
        }
        takeover::run(quick, only, &mut table).await?;
        Ok::<(), Box<dyn Error>>(())
    })?;
    Ok(table)
}

/// Measures one placement step of one instance in a fleet of a thousand, with a million targets.
fn placement(table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    const INSTANCES: usize = 1_000;
    let id = |n: usize| InstanceId::new(&format!("api-{n}-1736598400000000000-a1b2c3d4"));
    let mine: Vec<TargetScore> = (0..1_001).map(|n| TargetScore::of(&format!("endpoint-{n}"))).collect();
    for (what, joins) in [("an instance joins", true), ("this instance drains", false)] {
        let mut loads: Vec<InstanceLoad> = (0..INSTANCES)
            .map(|n| Ok(InstanceLoad { held: 1_000, ..InstanceLoad::new(id(n)?) }))
            .collect::<Result<_, Box<dyn Error>>>()?;
        if joins {
            loads.push(InstanceLoad::new(id(INSTANCES)?));
        } else {
            loads[0].presence = Presence::Draining;
        }
        let me = id(0)?;
        let mut took: Vec<f64> = (0..50)
            .map(|_| {
                let begun = Instant::now();
                let handoffs =
                    plan_handoffs(&me, &loads, &quotas(&loads, 0), mine.get(..1_000).unwrap_or_default(), |_, _| 0);
                std::hint::black_box(handoffs);
                millis(begun.elapsed())
            })
            .collect();
        let value = quantile(&mut took, 0.5);
        let name = format!("placement step, 1000 instances and 1 000 000 targets, {what}");
        table.add(BenchRow { name, value, raw: None, unit: "ms", bar: Bar::AtMost(5.0) });
    }
    Ok(())
}

/// Starts one instance, which does nothing with its targets.
pub async fn start_instance(url: &str, n: usize, size: &PoolSize) -> Result<(Tenure, Pool), Box<dyn Error>> {
    let tenure = Tenure::builder(url).name(&format!("api-{n}")).bootstrap().connect().await?;
    let targets = (0..size.targets).map(|n| format!("endpoint-{n}"));
    let pool = tenure.pool("poll").targets(targets).ttl(size.ttl);
    let pool = pool
        .run(async |_, term| {
            term.draining().await;
            Ok(())
        })
        .start()?;
    Ok((tenure, pool))
}

/// Measures one fleet. Instance memory is measured only in the first fleet: later fleets reuse memory that it has
/// freed.
async fn fleet(size: &PoolSize, first: bool, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    let title = size.title();
    let raw = raw_fleet(size).await?;
    let server = RedisServer::start();
    let (memory, resident) = (server_memory(&server)?, measure::resident()?);
    let mut instances = Vec::new();
    let begun = Instant::now();
    for n in 0..size.instances {
        instances.push(start_instance(&server.url(), n, size).await?);
    }
    wait_until(&instances, |held| held.iter().sum::<usize>() >= size.targets).await?;
    add(table, &format!("{title}: all targets held"), begun.elapsed(), Some(raw.claims));
    wait_until(&instances, |held| is_balanced(held, size.targets)).await?;
    add(table, &format!("{title}: all targets balanced"), begun.elapsed(), Some(raw.claims));

    let begun = Instant::now();
    instances.push(start_instance(&server.url(), size.instances, size).await?);
    wait_until(&instances, |held| is_balanced(held, size.targets)).await?;
    add(table, &format!("{title}: balanced after an instance joins"), begun.elapsed(), None);

    let begun = Instant::now();
    if let Some((_, pool)) = instances.pop() {
        pool.stop().await;
    }
    wait_until(&instances, |held| is_balanced(held, size.targets)).await?;
    add(table, &format!("{title}: balanced after that instance stops"), begun.elapsed(), None);

    // In a separate process, which can be killed.
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["member", &server.url(), &size.targets.to_string(), &size.ttl.as_millis().to_string()])
        .spawn()?;
    let rest = size.targets - size.targets / (size.instances + 1);
    wait_until(&instances, |held| held.iter().sum::<usize>() <= rest + 1).await?;
    tokio::time::sleep(size.ttl / 3).await;
    victim.kill()?;
    victim.wait()?;
    let begun = Instant::now();
    wait_until(&instances, |held| is_balanced(held, size.targets)).await?;
    add(table, &format!("{title}: balanced after an instance is killed"), begun.elapsed(), Some(size.ttl));

    // First let the pending records of those terms be written.
    tokio::time::sleep(size.ttl).await;
    let (before, cpu) = (commands_sent(&server)?, server_cpu(&server)?);
    tokio::time::sleep(size.watched_for).await;
    let seconds = size.watched_for.as_secs_f64();
    let value = (commands_sent(&server)? - before) as f64 / seconds;
    // One renewal of each lease per interval.
    let interval = size.ttl.as_secs_f64() / 3.0;
    let (name, bar) = (format!("{title}: commands of clients, settled"), Bar::RatioAtMost(1.2));
    table.add(BenchRow { name, value, raw: Some(size.targets as f64 / interval), unit: "per second", bar });
    let value = (server_cpu(&server)? - cpu) / seconds * 100.0;
    let name = format!("{title}: processor of the server, settled");
    table.add(BenchRow { name, value, raw: Some(raw.interval / interval * 100.0), unit: "%", bar });
    let value = (server_memory(&server)? - memory) / size.targets as f64;
    let name = format!("{title}: memory of the server per target");
    table.add(BenchRow { name, value, raw: Some(raw.memory), unit: "bytes", bar: Bar::None });
    if first {
        let value = (measure::resident()? - resident) / (size.targets * size.instances) as f64;
        let name = format!("{title}: memory per instance and target, held or not");
        table.add(BenchRow { name, value, raw: None, unit: "bytes", bar: Bar::None });
    }
    Ok(())
}

fn add(table: &mut BenchTable, name: &str, took: Duration, raw: Option<Duration>) {
    let raw = raw.map(|raw| raw.as_secs_f64());
    table.add(BenchRow { name: name.to_owned(), value: took.as_secs_f64(), raw, unit: "s", bar: Bar::None });
}

fn held(instances: &[(Tenure, Pool)]) -> Vec<usize> {
    instances.iter().map(|(tenure, _)| usize::try_from(tenure.stats().held).unwrap_or(0)).collect()
}

/// Returns whether all targets are held evenly. The reconciler's lease counts extra.
pub fn is_balanced(held: &[usize], targets: usize) -> bool {
    let (least, most) = (held.iter().min().copied().unwrap_or(0), held.iter().max().copied().unwrap_or(0));
    held.iter().sum::<usize>() >= targets && most - least <= 2
}

/// Waits until the numbers of held targets satisfy `condition`, and prints the progress from time to time.
pub async fn wait_until(
    instances: &[(Tenure, Pool)],
    condition: impl Fn(&[usize]) -> bool,
) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    let mut shown = begun;
    loop {
        let held = held(instances);
        if condition(&held) {
            return Ok(());
        }
        if begun.elapsed() > SETTLE_TIMEOUT {
            return Err(format!("the fleet does not settle: {held:?}").into());
        }
        if shown.elapsed() > Duration::from_secs(5) {
            shown = Instant::now();
            eprintln!("    after {:?}: {held:?}", begun.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The cost of as many leases on the raw store.
struct RawFleet {
    /// Time that one client takes to claim every target in pipelines.
    claims: Duration,
    /// CPU time of the server per interval, in seconds, for one renewal of each target with the same script and, with
    /// plain commands, one heartbeat of each instance and one read of the other heartbeats, all in pipelines.
    interval: f64,
    /// Bytes of a key with its holder.
    memory: f64,
}

async fn raw_fleet(size: &PoolSize) -> Result<RawFleet, Box<dyn Error>> {
    let server = RedisServer::start();
    let memory = server_memory(&server)?;
    let mut connection = redis::Client::open(server.url())?.get_connection()?;
    let begun = Instant::now();
    for chunk in 0..size.targets.div_ceil(1_000) {
        let mut pipeline = redis::pipe();
        for n in 0..1_000 {
            let key = format!("poll:lease:endpoint-{}", chunk * 1_000 + n);
            pipeline.cmd("SET").arg(key).arg("me").arg("NX").arg("PX").arg(30_000);
        }
        let _: Vec<redis::Value> = pipeline.query(&mut connection)?;
    }
    let claims = begun.elapsed();
    let memory = (server_memory(&server)? - memory) / size.targets as f64;

    let server = RedisServer::start();
    Tenure::builder(&server.url()).bootstrap().connect().await?.shutdown().await;
    let nodes: Vec<String> = (0..size.instances).map(|n| format!("api-{n}-1736598400000000000-a1b2c3d4")).collect();
    let mut fleet = Vec::new();
    for (n, node) in nodes.iter().enumerate() {
        let mut raw = RawRedis::connect(&server).await?;
        let mut leases = Vec::new();
        for target in (n..size.targets).step_by(size.instances) {
            let lease = format!("poll:lease:endpoint-{target}");
            let token = raw.acquire(&lease, node).await?;
            leases.push((lease, token));
        }
        raw.heartbeat(node, size.ttl).await?;
        fleet.push((node, raw, leases));
    }
    let (cpu, begun) = (server_cpu(&server)?, tokio::time::Instant::now());
    let steps = fleet.iter().map(|(_, _, leases)| leases.chunks(512).len()).sum::<usize>();
    let (pause, mut step) = (size.ttl / 3 / u32::try_from(steps)?, 0);
    let intervals = (size.watched_for.as_secs_f64() / (size.ttl / 3).as_secs_f64()).round();
    for _ in 0..intervals as usize {
        for (node, raw, leases) in &mut fleet {
            raw.heartbeat(node, size.ttl).await?;
            raw.read_heartbeats(&nodes).await?;
            for chunk in leases.chunks(512) {
                raw.renew(node, chunk).await?;
                step += 1;
                tokio::time::sleep_until(begun + pause * step).await;
            }
        }
    }
    Ok(RawFleet { claims, interval: (server_cpu(&server)? - cpu) / intervals, memory })
}

/// Runs an instance until it is killed.
pub fn run_instance(url: &str, targets: usize, ttl: Duration) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let size = PoolSize { instances: 1, targets, ttl, watched_for: ttl };
        let _member = start_instance(url, usize::MAX, &size).await?;
        std::future::pending().await
    })
}
