//! What `tenure serve` costs beyond a plain loop that polls as much.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tenure_testbed::{RedisServer, web};

use crate::measure::{calls, info, quantile, server_cpu};
use crate::part::{Part, bound};
use crate::table::{Bar, Row, Table};
use crate::target::Target;
use crate::visits::{Slots, Visit, millis, slots};

/// How often each session is polled.
pub const INTERVAL: Duration = Duration::from_secs(10);

const INSTANCES: usize = 3;

/// After this long it will not happen.
const NEVER: Duration = Duration::from_secs(300);

/// How many sessions there are, and how long they are watched.
struct Size {
    sessions: usize,
    watched_for: Duration,
}

/// What polling took, for each poll.
struct Span {
    /// How late they came, in milliseconds.
    late: Vec<f64>,
    slots: Slots,
    /// Microseconds of whoever polls, and of the server.
    cpu: f64,
    server_cpu: f64,
    /// Commands that clients sent, and with those that scripts called.
    commands: f64,
    all_commands: f64,
}

/// One way to poll, measured.
struct Measured {
    span: Span,
    /// Bytes for each session.
    memory: f64,
}

/// How long a fleet took to get to work.
struct Beginning {
    made: Duration,
    balanced: Duration,
}

pub fn run(quick: bool) -> Result<Table, Box<dyn Error>> {
    let size = if quick {
        Size { sessions: 1_000, watched_for: Duration::from_secs(10) }
    } else {
        Size { sessions: 10_000, watched_for: Duration::from_secs(30) }
    };
    let program = std::env::current_exe()?.with_file_name("tenure");
    if !program.exists() {
        return Err("`tenure` is not beside this program: `cargo build --release -p tenure-cli`".into());
    }
    // Before and after: the machine may be in another mood by then.
    let before = plain_loop(&size)?;
    let (beginning, fleet) = fleet(&size, &program)?;
    let after = plain_loop(&size)?;
    Ok(table(&size, &beginning, fleet, before, after))
}

/// The limit.
fn plain_loop(size: &Size) -> Result<Measured, Box<dyn Error>> {
    let (server, target) = (RedisServer::start(), Target::start()?);
    let arguments = ["plain-loop", &target.url(), &server.url(), &size.sessions.to_string()];
    let (mut part, _) = Part::of_this_program(&arguments)?;
    let resident = part.resident()?;
    part.go()?;
    // The first of each, and one more.
    std::thread::sleep(INTERVAL * 2);
    let parts = [part];
    let span = watch(size, &parts, &server, &target, &["set"])?;
    Ok(Measured { span, memory: (resident_of(&parts)? - resident) / size.sessions as f64 })
}

/// The service.
fn fleet(size: &Size, program: &Path) -> Result<(Beginning, Measured), Box<dyn Error>> {
    let (server, target) = (RedisServer::start(), Target::start()?);
    let (store, mut parts, mut addresses) = (server.url(), Vec::new(), Vec::new());
    for n in 0..INSTANCES {
        let name = format!("api-{n}");
        // At `info` it says where it answers; nothing that is measured is logged there.
        let arguments = ["--store", &store, "--bootstrap", "--log-level", "info", "serve", "--name", &name];
        let arguments = [arguments.as_slice(), &["--listen", "127.0.0.1:0"]].concat();
        let (part, address) = Part::of(program, &arguments, address_in)?;
        parts.push(part);
        addresses.push(address);
    }
    let is_ready = |address: &String| matches!(web::ask(address, "GET", "/readyz", &[], ""), Some((200, _)));
    until(|| addresses.iter().all(is_ready))?;
    // It has joined, and is at rest.
    std::thread::sleep(INTERVAL / 2);
    let resident = resident_of(&parts)?;

    let begun = Instant::now();
    import(size, program, &store, &target)?;
    let made = begun.elapsed();
    until(|| is_balanced(&addresses, size.sessions))?;
    let beginning = Beginning { made, balanced: begun.elapsed() };
    // The first of each, and one more.
    std::thread::sleep(INTERVAL * 2);
    // Who lives is read by `MGET` in a script, too, but seldom.
    let span = watch(size, &parts, &server, &target, &["evalsha", "mget", "smembers", "ping"])?;
    let memory = (resident_of(&parts)? - resident) / size.sessions as f64;
    Ok((beginning, Measured { span, memory }))
}

/// Where an instance answers, in the line that it starts with.
fn address_in(line: &str) -> Option<&str> {
    Some(line.split_once("API at http://")?.1.split_once(';')?.0)
}

/// Makes all sessions, as somebody would who moves from another store.
fn import(size: &Size, program: &Path, store: &str, target: &Target) -> Result<(), Box<dyn Error>> {
    let mut command = bound(program);
    command.args(["--store", store, "--bootstrap", "session", "import"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut import = command.spawn()?;
    let mut lines = import.stdin.take().ok_or("its input was not kept")?;
    for session in 0..size.sessions {
        let id = format!("00000000-0000-7000-8000-{session:012x}");
        let url = format!("{}{session}", target.url());
        // Should it end early, it says why.
        if writeln!(lines, "{}", json!({"id": id, "url": url, "interval": "10s"})).is_err() {
            break;
        }
    }
    drop(lines);
    if import.wait()?.success() { Ok(()) } else { Err("the sessions could not be made".into()) }
}

/// Whether all are held, and each instance holds about as many as the others: one may lead everything besides.
fn is_balanced(addresses: &[String], sessions: usize) -> bool {
    let held: Option<Vec<usize>> = addresses.iter().map(|address| held(address)).collect();
    let Some(held) = held else { return false };
    let (least, most) = (held.iter().min().copied().unwrap_or(0), held.iter().max().copied().unwrap_or(0));
    held.iter().sum::<usize>() >= sessions && most - least <= 4
}

fn held(address: &str) -> Option<usize> {
    let (_, metrics) = web::ask(address, "GET", "/metrics", &[], "")?;
    let held: f64 = metrics.lines().find_map(|line| line.strip_prefix("tenure_leases_held "))?.parse().ok()?;
    Some(held as usize)
}

fn until(is_so: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > NEVER {
            return Err("it does not come to rest".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn resident_of(parts: &[Part]) -> Result<f64, Box<dyn Error>> {
    parts.iter().map(Part::resident).sum()
}

fn cpu_of(parts: &[Part]) -> Result<f64, Box<dyn Error>> {
    parts.iter().map(Part::cpu).sum()
}

/// Watches those who poll, and their server, to which clients send these commands.
fn watch(
    size: &Size,
    parts: &[Part],
    server: &RedisServer,
    target: &Target,
    of_clients: &[&str],
) -> Result<Span, Box<dyn Error>> {
    let read = || -> Result<_, Box<dyn Error>> {
        let all = info(server, "stats", "total_commands_processed:")?;
        Ok((cpu_of(parts)?, server_cpu(server)?, calls(server, of_clients)? as f64, all))
    };
    // What came before is nobody's business.
    target.visits()?;
    let (from, begin) = (SystemTime::now(), read()?);
    std::thread::sleep(size.watched_for);
    let (until, end, visits) = (SystemTime::now(), read()?, target.visits()?);
    let polls = visits.len() as f64;
    let slots = slots(&visits, size.sessions, INTERVAL, millis(from), millis(until));
    Ok(Span {
        late: visits.iter().map(Visit::late).collect(),
        slots,
        cpu: (end.0 - begin.0) / polls * 1e6,
        server_cpu: (end.1 - begin.1) / polls * 1e6,
        commands: (end.2 - begin.2) / polls,
        all_commands: (end.3 - begin.3) / polls,
    })
}

fn table(size: &Size, beginning: &Beginning, fleet: Measured, before: Measured, after: Measured) -> Table {
    let mut table = Table::new("serve");
    let title = format!("{} sessions on {INSTANCES} instances", size.sessions);
    let mut add = |what: &str, value: f64, raw: Option<f64>, unit: &'static str, bar: Bar| {
        table.add(Row { name: format!("{title}: {what}"), value, raw, unit, bar });
    };
    let both = |number: fn(&Measured) -> f64| Some((number(&before) + number(&after)) / 2.0);
    add("made by `session import`", beginning.made.as_secs_f64(), None, "s", Bar::None);
    add("all are held and balanced", beginning.balanced.as_secs_f64(), None, "s", Bar::None);
    let raw = both(|measured| measured.span.cpu);
    add("processor for each poll", fleet.span.cpu, raw, "µs", Bar::RatioAtMost(1.5));
    let raw = both(|measured| measured.span.server_cpu);
    add("processor of the server for each poll", fleet.span.server_cpu, raw, "µs", Bar::None);
    add("memory for each session", fleet.memory, both(|measured| measured.memory), "bytes", Bar::None);
    let raw = both(|measured| measured.span.commands);
    add("commands of clients for each poll", fleet.span.commands, raw, "commands", Bar::None);
    let raw = both(|measured| measured.span.all_commands);
    add("and those that scripts call", fleet.span.all_commands, raw, "commands", Bar::None);
    let raw = both(|measured| measured.span.slots.twice as f64);
    add("slots polled twice", fleet.span.slots.twice as f64, raw, "slots", Bar::AtMost(0.0));
    let raw = both(|measured| measured.span.slots.left_out as f64);
    add("slots left out", fleet.span.slots.left_out as f64, raw, "slots", Bar::AtMost(0.0));
    let (mut late, mut raw) = (fleet.span.late, [before.span.late, after.span.late].concat());
    for (what, part) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        let (value, raw) = (quantile(&mut late, part), quantile(&mut raw, part));
        add(&format!("late, {what}"), value, Some(raw), "ms", Bar::None);
    }
    table
}
