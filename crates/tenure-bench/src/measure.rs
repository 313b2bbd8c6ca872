//! Measurements on a noisy machine.

use std::error::Error;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use tenure_testbed::RedisServer;

/// Pause before each hand-over.
pub const REST_BEFORE_HAND_OVER: Duration = Duration::from_millis(2);

/// The median.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    quantile(&mut numbers, 0.5)
}

/// The quantile: the value that this fraction of the numbers does not exceed.
pub fn quantile(numbers: &mut [f64], part: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let at = ((numbers.len() as f64 - 1.0) * part).round() as usize;
    numbers.get(at).copied().unwrap_or(f64::NAN)
}

pub fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

pub fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// Resident memory of this process, in bytes.
pub fn resident() -> std::io::Result<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(f64::NAN);
    Ok(pages * 4096.0)
}

/// CPU time of the threads with this name, in seconds.
pub fn thread_cpu(name: &str) -> std::io::Result<f64> {
    let mut ticks = 0.0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        // A thread may end after the listing.
        let Ok(comm) = std::fs::read_to_string(task.join("comm")) else { continue };
        if comm.trim_end() != name {
            continue;
        }
        // Nanoseconds on the CPU, nanoseconds waiting for one, time slices.
        let schedstat = std::fs::read_to_string(task.join("schedstat"))?;
        ticks += schedstat.split_whitespace().next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(f64::NAN);
    }
    Ok(ticks / 1e9)
}

/// Measures how late a thread wakes that only sleeps until each of these moments.
pub fn measure_lag(moments: Receiver<Instant>) -> std::thread::JoinHandle<Vec<f64>> {
    std::thread::spawn(move || {
        let late = |at: Instant| {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            millis(Instant::now().saturating_duration_since(at))
        };
        moments.into_iter().map(late).collect()
    })
}

/// Number of commands that clients have sent. Commands that scripts also call are left out, because the server counts
/// both.
pub fn commands_sent(server: &RedisServer) -> Result<u64, Box<dyn Error>> {
    command_calls(server, &["evalsha", "xadd", "ping", "subscribe", "script|load", "sadd", "srem", "smembers", "mget"])
}

/// Number of calls of these commands, by clients and by scripts.
pub fn command_calls(server: &RedisServer, names: &[&str]) -> Result<u64, Box<dyn Error>> {
    let stats = server.command(&["INFO", "commandstats"]);
    let mut total = 0;
    for line in stats.as_text().lines() {
        for name in names {
            let calls =
                line.strip_prefix("cmdstat_").and_then(|rest| rest.strip_prefix(*name)?.strip_prefix(":calls="));
            if let Some(rest) = calls {
                total += rest.split(',').next().ok_or("no count")?.parse::<u64>()?;
            }
        }
    }
    Ok(total)
}

/// Memory that a server uses, in bytes.
pub fn server_memory(server: &RedisServer) -> Result<f64, Box<dyn Error>> {
    info(server, "memory", "used_memory:")
}

/// CPU time that a server has used, in seconds.
pub fn server_cpu(server: &RedisServer) -> Result<f64, Box<dyn Error>> {
    Ok(info(server, "cpu", "used_cpu_user:")? + info(server, "cpu", "used_cpu_sys:")?)
}

/// A numeric field of a server's `INFO`.
pub fn info(server: &RedisServer, section: &str, field: &str) -> Result<f64, Box<dyn Error>> {
    let info = server.command(&["INFO", section]);
    let line = info.as_text().lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field in INFO")?;
    Ok(line.trim().parse()?)
}
