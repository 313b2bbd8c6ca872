//! Measures the cost of `tenure serve` over a plain loop that polls as much.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tenure_testbed::{RedisServer, web};

use crate::child::{ChildProcess, bound_command};
use crate::measure::{command_calls, info, quantile, server_cpu};
use crate::poll_records::{PollRecord, SlotCounts, count_slots, unix_millis};
use crate::polled_server::PolledServer;
use crate::table::{Bar, BenchRow, BenchTable};

/// Interval between two polls of a session.
pub const INTERVAL: Duration = Duration::from_secs(10);

const INSTANCES: usize = 3;

/// After this long the fleet will not settle.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Number of sessions and time of observation.
struct ServeSize {
    sessions: usize,
    watched_for: Duration,
}

/// Costs per poll.
struct PollCosts {
    /// Delays after the due times, in milliseconds.
    late: Vec<f64>,
    slots: SlotCounts,
    /// CPU time of the polling processes and of the server, in microseconds.
    cpu: f64,
    server_cpu: f64,
    /// Commands sent by clients, and the same with the commands that scripts call.
    commands: f64,
    all_commands: f64,
}

/// The measurement of one way to poll.
struct Measurement {
    costs: PollCosts,
    /// Bytes per session.
    memory: f64,
}

/// Startup times of a fleet.
struct Startup {
    imported: Duration,
    balanced: Duration,
}

pub fn run(quick: bool) -> Result<BenchTable, Box<dyn Error>> {
    let size = if quick {
        ServeSize { sessions: 1_000, watched_for: Duration::from_secs(10) }
    } else {
        ServeSize { sessions: 10_000, watched_for: Duration::from_secs(30) }
    };
    let program = std::env::current_exe()?.with_file_name("tenure");
    if !program.exists() {
        return Err("cannot find `tenure` next to this program; run `cargo build --release -p tenure-cli`".into());
    }
    // Before and after, because the speed of the machine may change meanwhile.
    let before = plain_loop(&size)?;
    let (startup, fleet) = fleet(&size, &program)?;
    let after = plain_loop(&size)?;
    Ok(table(&size, &startup, fleet, before, after))
}

/// Measures the baseline.
fn plain_loop(size: &ServeSize) -> Result<Measurement, Box<dyn Error>> {
    let (server, target) = (RedisServer::start(), PolledServer::start()?);
    let arguments = ["plain-loop", &target.url(), &server.url(), &size.sessions.to_string()];
    let (mut child, _) = ChildProcess::start_self(&arguments)?;
    let resident = child.resident()?;
    child.send_go()?;
    // The first poll of each session, and one more.
    std::thread::sleep(INTERVAL * 2);
    let children = [child];
    let costs = measure_polls(size, &children, &server, &target, &["set"])?;
    Ok(Measurement { costs, memory: (resident_of(&children)? - resident) / size.sessions as f64 })
}

/// Measures the service.
fn fleet(size: &ServeSize, program: &Path) -> Result<(Startup, Measurement), Box<dyn Error>> {
    let (server, target) = (RedisServer::start(), PolledServer::start()?);
    let (store, mut children, mut addresses) = (server.url(), Vec::new(), Vec::new());
    for n in 0..INSTANCES {
        let name = format!("api-{n}");
        // At `info` it logs its address, and nothing that is measured.
        let arguments = ["--store", &store, "--bootstrap", "--log-level", "info", "serve", "--name", &name];
        let arguments = [arguments.as_slice(), &["--listen", "127.0.0.1:0"]].concat();
        let (child, address) = ChildProcess::start_program(program, &arguments, address_in)?;
        children.push(child);
        addresses.push(address);
    }
    let is_ready = |address: &String| matches!(web::request(address, "GET", "/readyz", &[], ""), Some((200, _)));
    wait_until(|| addresses.iter().all(is_ready))?;
    // The instances have joined and are idle.
    std::thread::sleep(INTERVAL / 2);
    let resident = resident_of(&children)?;

    let begun = Instant::now();
    import(size, program, &store, &target)?;
    let imported = begun.elapsed();
    wait_until(|| is_balanced(&addresses, size.sessions))?;
    let startup = Startup { imported, balanced: begun.elapsed() };
    // The first poll of each session, and one more.
    std::thread::sleep(INTERVAL * 2);
    // A script also reads the heartbeats with `MGET`, but rarely.
    let costs = measure_polls(size, &children, &server, &target, &["evalsha", "mget", "smembers", "ping"])?;
    let memory = (resident_of(&children)? - resident) / size.sessions as f64;
    Ok((startup, Measurement { costs, memory }))
}

/// The address of an instance, from the line that it logs at the start.
fn address_in(line: &str) -> Option<&str> {
    Some(line.split_once("API at http://")?.1.split_once(';')?.0)
}

/// Creates all sessions with `tenure session import`.
fn import(size: &ServeSize, program: &Path, store: &str, target: &PolledServer) -> Result<(), Box<dyn Error>> {
    let mut command = bound_command(program);
    command.args(["--store", store, "--bootstrap", "session", "import"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut import = command.spawn()?;
    let mut lines = import.stdin.take().ok_or("the child has no stdin")?;
    for session in 0..size.sessions {
        let id = format!("00000000-0000-7000-8000-{session:012x}");
        let url = format!("{}{session}", target.url());
        // If it exits early, it prints why.
        if writeln!(lines, "{}", json!({"id": id, "url": url, "interval": "10s"})).is_err() {
            break;
        }
    }
    drop(lines);
    if import.wait()?.success() {
        Ok(())
    } else {
        Err("cannot create the sessions: `tenure session import` failed".into())
    }
}

/// Returns whether all sessions are held and evenly spread. One instance may also hold every leadership.
fn is_balanced(addresses: &[String], sessions: usize) -> bool {
    let held: Option<Vec<usize>> = addresses.iter().map(|address| held(address)).collect();
    let Some(held) = held else { return false };
    let (least, most) = (held.iter().min().copied().unwrap_or(0), held.iter().max().copied().unwrap_or(0));
    held.iter().sum::<usize>() >= sessions && most - least <= 4
}

fn held(address: &str) -> Option<usize> {
    let (_, metrics) = web::request(address, "GET", "/metrics", &[], "")?;
    let held: f64 = metrics.lines().find_map(|line| line.strip_prefix("tenure_leases_held "))?.parse().ok()?;
    Some(held as usize)
}

fn wait_until(condition: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > SETTLE_TIMEOUT {
            return Err("the fleet does not settle".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn resident_of(children: &[ChildProcess]) -> Result<f64, Box<dyn Error>> {
    children.iter().map(ChildProcess::resident).sum()
}

fn cpu_of(children: &[ChildProcess]) -> Result<f64, Box<dyn Error>> {
    children.iter().map(ChildProcess::cpu).sum()
}

/// Measures the polling processes and their server, to which clients send these commands.
fn measure_polls(
    size: &ServeSize,
    children: &[ChildProcess],
    server: &RedisServer,
    target: &PolledServer,
    client_commands: &[&str],
) -> Result<PollCosts, Box<dyn Error>> {
    let read = || -> Result<_, Box<dyn Error>> {
        let all = info(server, "stats", "total_commands_processed:")?;
        Ok((cpu_of(children)?, server_cpu(server)?, command_calls(server, client_commands)? as f64, all))
    };
    // Discard the polls from before.
    target.poll_records()?;
    let (from, begin) = (SystemTime::now(), read()?);
    std::thread::sleep(size.watched_for);
    let (until, end, poll_records) = (SystemTime::now(), read()?, target.poll_records()?);
    let polls = poll_records.len() as f64;
    let slots = count_slots(&poll_records, size.sessions, INTERVAL, unix_millis(from), unix_millis(until));
    Ok(PollCosts {
        late: poll_records.iter().map(PollRecord::late).collect(),
        slots,
        cpu: (end.0 - begin.0) / polls * 1e6,
        server_cpu: (end.1 - begin.1) / polls * 1e6,
        commands: (end.2 - begin.2) / polls,
        all_commands: (end.3 - begin.3) / polls,
    })
}

fn table(
    size: &ServeSize,
    startup: &Startup,
    fleet: Measurement,
    before: Measurement,
    after: Measurement,
) -> BenchTable {
    let mut table = BenchTable::new("serve");
    let title = format!("{} sessions on {INSTANCES} instances", size.sessions);
    let mut add = |what: &str, value: f64, raw: Option<f64>, unit: &'static str, bar: Bar| {
        table.add(BenchRow { name: format!("{title}: {what}"), value, raw, unit, bar });
    };
    let both = |number: fn(&Measurement) -> f64| Some((number(&before) + number(&after)) / 2.0);
    add("made by `session import`", startup.imported.as_secs_f64(), None, "s", Bar::None);
    add("all are held and balanced", startup.balanced.as_secs_f64(), None, "s", Bar::None);
    let raw = both(|measured| measured.costs.cpu);
    add("processor for each poll", fleet.costs.cpu, raw, "µs", Bar::RatioAtMost(1.5));
    let raw = both(|measured| measured.costs.server_cpu);
    add("processor of the server for each poll", fleet.costs.server_cpu, raw, "µs", Bar::None);
    add("memory for each session", fleet.memory, both(|measured| measured.memory), "bytes", Bar::None);
    let raw = both(|measured| measured.costs.commands);
    add("commands of clients for each poll", fleet.costs.commands, raw, "commands", Bar::None);
    let raw = both(|measured| measured.costs.all_commands);
    add("and those that scripts call", fleet.costs.all_commands, raw, "commands", Bar::None);
    let raw = both(|measured| measured.costs.slots.polled_twice as f64);
    add("slots polled twice", fleet.costs.slots.polled_twice as f64, raw, "slots", Bar::AtMost(0.0));
    let raw = both(|measured| measured.costs.slots.skipped as f64);
    add("slots left out", fleet.costs.slots.skipped as f64, raw, "slots", Bar::AtMost(0.0));
    let (mut late, mut raw) = (fleet.costs.late, [before.costs.late, after.costs.late].concat());
    for (what, part) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        let (value, raw) = (quantile(&mut late, part), quantile(&mut raw, part));
        add(&format!("late, {what}"), value, Some(raw), "ms", Bar::None);
    }
    table
}
