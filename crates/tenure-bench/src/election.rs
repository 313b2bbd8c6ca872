//! Measures the time without a leader and the cost of an election for the server.

use std::error::Error;
use std::time::{Duration, Instant};

use tenure::{Election, Tenure};
use tenure_testbed::RedisServer;

use crate::measure::{REST_BEFORE_HAND_OVER, commands_sent as sent, measure_lag, micros, millis, quantile};
use crate::raw_redis::{RawRedis, RedisHandOver};
use crate::table::{Bar, BenchRow, BenchTable};

const ROLE: &str = "bench";

/// Numbers of repetitions for each ttl.
struct ElectionSize {
    ttls: &'static [(u64, usize, usize)],
    watched_for: Duration,
}

/// Ttl in seconds, number of hand-overs, number of crashes.
const FULL: ElectionSize =
    ElectionSize { ttls: &[(1, 300, 200), (5, 300, 100), (30, 50, 20)], watched_for: Duration::from_secs(60) };
const QUICK: ElectionSize = ElectionSize { ttls: &[(1, 30, 20)], watched_for: Duration::from_secs(15) };

/// Times that the originals of these elections state in their documents.
const COMPARISON: &str =
    "For comparison, the originals state 15 s and 10 s for a clean hand-over, 45 s and 40 s after a crash.";

pub fn run(quick: bool, only: &str) -> Result<BenchTable, Box<dyn Error>> {
    let size = if quick { QUICK } else { FULL };
    let mut table = BenchTable::new("election");
    eprintln!("{COMPARISON}");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        for (seconds, hand_overs, crashes) in size.ttls {
            let ttl = Duration::from_secs(*seconds);
            if "clean hand-over".contains(only) {
                measure_hand_overs(ttl, *hand_overs, &mut table).await?;
            }
            if "crash take-over".contains(only) {
                measure_take_overs(ttl, *crashes, &mut table).await?;
            }
        }
        if "commands".contains(only) {
            measure_commands(size.watched_for, &mut table).await?;
        }
        Ok::<(), Box<dyn Error>>(())
    })?;
    Ok(table)
}

async fn connect(server: &RedisServer, name: &str) -> Result<Tenure, Box<dyn Error>> {
    Ok(Tenure::builder(&server.url()).name(name).bootstrap().connect().await?)
}

fn candidate(tenure: &Tenure, ttl: Duration) -> Result<Election, Box<dyn Error>> {
    Ok(tenure.election(ROLE).ttl(ttl).build()?)
}

/// Adds three rows of one measurement.
fn rows(table: &mut BenchTable, name: &str, unit: &'static str, mut values: Vec<f64>, mut raws: Vec<f64>, bar: Bar) {
    for (part, word) in [(0.5, "p50"), (0.99, "p99"), (1.0, "max")] {
        table.add(BenchRow {
            name: format!("{name}, {word}"),
            value: quantile(&mut values, part),
            raw: Some(quantile(&mut raws, part)),
            unit,
            bar: if word == "p99" { bar } else { Bar::None },
        });
    }
}

/// Measures the time from a leader's stop to its successor's leadership, alternating with the raw store.
async fn measure_hand_overs(ttl: Duration, count: usize, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    let server = RedisServer::start();
    let (one, two) = (connect(&server, "one").await?, connect(&server, "two").await?);
    let mut raw = RedisHandOver::new(RawRedis::connect(&server).await?).await?;
    let (mut leader, mut follower) = (candidate(&one, ttl)?, candidate(&two, ttl)?);
    leader.start();
    leader.wait_for_leadership(ttl).await?;
    let (mut values, mut raws) = (Vec::new(), Vec::new());
    for _ in 0..count {
        raws.push(micros(raw.measure_once().await?));
        follower.start();
        // The successor has sent its request and waits.
        tokio::time::sleep(REST_BEFORE_HAND_OVER * 2).await;
        let start = Instant::now();
        let (stopped, led) =
            tokio::join!(leader.stop(), async { follower.wait_for_leadership(ttl * 2).await.map(|_| Instant::now()) });
        let () = stopped;
        values.push(micros(led? - start));
        std::mem::swap(&mut leader, &mut follower);
    }
    leader.stop().await;
    rows(table, &format!("clean hand-over, ttl {ttl:?}"), "µs", values, raws, Bar::None);
    Ok(())
}

/// Measures the delay from the expiry of a dead leader's lease to its successor's leadership, next to a thread that
/// only sleeps until then.
async fn measure_take_overs(ttl: Duration, count: usize, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    let server = RedisServer::start();
    let tenure = connect(&server, "waiter").await?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let probe = measure_lag(receiver);
    let mut waiting = Vec::new();
    // All at once, a few milliseconds apart, so that the ttl passes only once.
    for number in 0..count {
        let role = format!("crashed-{number}");
        let key = format!("leader:{role}");
        server.command(&["SET", &key, "gone", "NX", "PX", &ttl.as_millis().to_string()]);
        let gone = Instant::now() + ttl;
        sender.send(gone)?;
        let election = tenure.election(&role).ttl(ttl).build()?;
        election.start();
        waiting.push(tokio::spawn(async move {
            let led = election.wait_for_leadership(ttl * 4).await.map(|_| Instant::now());
            election.stop().await;
            led.map(|now| millis(now.saturating_duration_since(gone)))
        }));
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    drop(sender);
    let mut late = Vec::new();
    for task in waiting {
        late.push(task.await??);
    }
    let lag = probe.join().map_err(|_| "the lag probe panicked")?;
    // The jitter after an expiry is at most 25 ms.
    rows(table, &format!("crash take-over, late beyond the ttl of {ttl:?}"), "ms", late, lag, Bar::BeyondRaw(30.0));
    tenure.shutdown().await;
    Ok(())
}

/// Measures the commands that candidates send per minute with a ttl of 30 s, polls every 15 s and renewals every 10 s.
async fn measure_commands(span: Duration, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(30);
    let one = connect(&server, "one").await?;
    let leader = candidate(&one, ttl)?;
    leader.start();
    leader.wait_for_leadership(ttl).await?;
    let alone = per_minute(&server, span).await?;
    let two = connect(&server, "two").await?;
    let follower = candidate(&two, ttl)?;
    follower.start();
    let both = per_minute(&server, span).await?;
    for (name, value, bar) in [("leader", alone, 10.0), ("follower", (both - alone).max(0.0), 8.0)] {
        let name = format!("commands of a {name} in a minute, ttl 30 s");
        table.add(BenchRow { name, value, raw: None, unit: "commands", bar: Bar::AtMost(bar) });
    }
    follower.stop().await;
    leader.stop().await;
    Ok(())
}

async fn per_minute(server: &RedisServer, span: Duration) -> Result<f64, Box<dyn Error>> {
    // The commands of the start are over.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = sent(server)?;
    tokio::time::sleep(span).await;
    Ok((sent(server)? - before) as f64 * 60.0 / span.as_secs_f64())
}
