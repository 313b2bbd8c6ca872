//! Measures how late the targets of a killed instance are held again, counted from the expiry of its leases.

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use redis::Connection;
use tenure::Tenure;
use tenure::pool::Pool;
use tenure_testbed::RedisServer;

use crate::measure::quantile;
use crate::pool::{PoolSize, is_balanced, start_instance, wait_until};
use crate::table::{Bar, BenchRow, BenchTable};

/// Numbers of surviving instances and of targets.
const FULL_SIZES: [(usize, usize); 4] = [(2, 3_000), (9, 3_000), (9, 10_000), (49, 3_000)];
const QUICK_SIZES: [(usize, usize); 1] = [(2, 300)];

pub async fn run(quick: bool, only: &str, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    let (sizes, ttls) =
        if quick { (QUICK_SIZES.as_slice(), [6].as_slice()) } else { (FULL_SIZES.as_slice(), [30, 3].as_slice()) };
    for seconds in ttls {
        for (survivors, targets) in sizes {
            let ttl = Duration::from_secs(*seconds);
            let size = PoolSize { instances: *survivors, targets: *targets, ttl, watched_for: ttl };
            if "take-over".contains(only) || title(&size).contains(only) {
                takeover(&size, table).await?;
            }
        }
    }
    Ok(())
}

fn title(size: &PoolSize) -> String {
    format!("take-over from one of {} with {} targets, ttl {:?}", size.instances + 1, size.targets, size.ttl)
}

async fn takeover(size: &PoolSize, table: &mut BenchTable) -> Result<(), Box<dyn Error>> {
    let server = RedisServer::start();
    let mut instances: Vec<(Tenure, Pool)> = Vec::new();
    for n in 0..size.instances {
        instances.push(start_instance(&server.url(), n, size).await?);
    }
    wait_until(&instances, |held| is_balanced(held, size.targets)).await?;
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["member", &server.url(), &size.targets.to_string(), &size.ttl.as_millis().to_string()])
        .spawn()?;
    let rest = size.targets - size.targets / (size.instances + 1);
    wait_until(&instances, |held| held.iter().sum::<usize>() <= rest + 1).await?;
    // Wait until the fleet is idle.
    tokio::time::sleep(size.ttl.max(Duration::from_secs(6))).await;
    victim.kill()?;
    victim.wait()?;
    let mut connection = redis::Client::open(server.url())?.get_connection()?;
    let expiries = expiries(&mut connection, size.targets)?;
    wait_until(&instances, |held| is_balanced(held, size.targets)).await?;
    let mut late = lateness(&mut connection, &expiries)?;
    let raw = raw_lateness(&mut connection, expiries.len())?;
    let title = title(size);
    for (part, name, bar) in
        [(0.5, "p50", Bar::AtMost(10.0)), (0.99, "p99", Bar::AtMost(50.0)), (1.0, "max", Bar::None)]
    {
        let (value, raw) = (quantile(&mut late, part), Some(quantile(&mut raw.clone(), part)));
        table.add(BenchRow { name: format!("{title}: late beyond expiry, {name}"), value, raw, unit: "ms", bar });
    }
    for (_, pool) in instances {
        pool.stop().await;
    }
    Ok(())
}

/// Expiry of each lease of the killed instance, by the server's clock in microseconds.
fn expiries(connection: &mut Connection, targets: usize) -> Result<Vec<(usize, f64)>, Box<dyn Error>> {
    let script = "local time = redis.call('TIME')
                  local left = redis.call('PTTL', KEYS[1])
                  return {redis.call('GET', KEYS[1]), left, time[1] * 1000000 + time[2]}";
    let mut pipeline = redis::pipe();
    for n in 0..targets {
        pipeline.cmd("EVAL").arg(script).arg(1).arg(format!("poll:lease:endpoint-{n}"));
    }
    let found: Vec<(String, i64, i64)> = pipeline.query(connection)?;
    let dead =
        found.into_iter().enumerate().filter(|(_, (holder, ..))| holder.starts_with(&format!("api-{}-", usize::MAX)));
    Ok(dead.map(|(n, (_, left, now))| (n, now as f64 + left as f64 * 1e3)).collect())
}

/// Delay until each of these leases was granted again, in milliseconds.
fn lateness(connection: &mut Connection, expiries: &[(usize, f64)]) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut pipeline = redis::pipe();
    for (n, _) in expiries {
        pipeline.cmd("HGET").arg(format!("tenure:term:{{poll:lease:endpoint-{n}}}")).arg("since");
    }
    let since: Vec<f64> = pipeline.query(connection)?;
    Ok(since.iter().zip(expiries).map(|(since, (_, expired))| (since - expired) / 1e3).collect())
}

/// The same for one client that only waits until keys expire and then takes them: in ten batches, as leases expire.
fn raw_lateness(connection: &mut Connection, count: usize) -> Result<Vec<f64>, Box<dyn Error>> {
    let take = "local time = redis.call('TIME')
                local taken = redis.call('SET', KEYS[1], 'me', 'NX', 'PX', 60000)
                return {taken and 1 or 0, time[1] * 1000000 + time[2]}";
    let mut late = Vec::new();
    for batch in 0..10 {
        let keys: Vec<String> = (0..count.div_ceil(10)).map(|n| format!("raw-{batch}-{n}")).collect();
        let mut pipeline = redis::pipe();
        for key in &keys {
            pipeline.cmd("SET").arg(key).arg("other").arg("PX").arg(100).ignore();
        }
        pipeline.cmd("TIME");
        let ((seconds, micros),): ((f64, f64),) = pipeline.query(connection)?;
        let expired = seconds * 1e6 + micros + 100_000.0;
        std::thread::sleep(Duration::from_millis(101));
        let mut pipeline = redis::pipe();
        for key in &keys {
            pipeline.cmd("EVAL").arg(take).arg(1).arg(key);
        }
        let taken: Vec<(i64, f64)> = pipeline.query(connection)?;
        late.extend(taken.iter().filter(|(taken, _)| *taken == 1).map(|(_, at)| (at - expired) / 1e3));
    }
    Ok(late)
}
