//! The simulator's command line.

use std::process::ExitCode;
use std::time::Instant;

use tenure_sim::campaign;
use tenure_sim::fleet::storm::{self, FleetSize};
use tenure_sim::world::World;

const USAGE: &str = "\
Run Tenure's decision code in simulated worlds, one per seed.

Usage: tenure-sim [--fleets small|large] [--seeds N] [--seed S] [--trace] [--jobs N]

  --fleets    simulate fleets that share targets, instead of single leases
  --seeds N   number of worlds (default 1000)
  --seed S    first seed (default 0); without --seeds, run only this one
  --trace     print every observation; one world only
  --jobs N    number of threads (default: one per core)

Exits with 0 if every invariant held, 1 if one was violated, 64 for wrong usage.";

struct Options {
    first: u64,
    count: u64,
    trace: bool,
    jobs: usize,
    fleets: Option<FleetSize>,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let (mut first, mut count, mut trace, mut fleets) = (None, None, false, None);
    let mut jobs = std::thread::available_parallelism().map_or(1, usize::from);
    while let Some(flag) = args.next() {
        if flag == "--fleets" {
            fleets = match args.next().as_deref() {
                Some("small") => Some(FleetSize::Small),
                Some("large") => Some(FleetSize::Large),
                _ => return Err("--fleets needs \"small\" or \"large\"".to_owned()),
            };
            continue;
        }
        let mut number = || {
            let value = args.next().ok_or(format!("{flag} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{flag} needs a number, got {value:?}"))
        };
        match flag.as_str() {
            "--seeds" => count = Some(number()?),
            "--seed" => first = Some(number()?),
            "--jobs" => jobs = usize::try_from(number()?).map_err(|_| "too many jobs".to_owned())?,
            "--trace" => trace = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    let count = count.unwrap_or(if first.is_some() { 1 } else { 1_000 });
    if count == 0 {
        return Err("--seeds must be at least 1, got 0".to_owned());
    }
    if trace && fleets.is_some() {
        return Err("cannot combine --trace with --fleets: it traces single leases only".to_owned());
    }
    if trace && count != 1 {
        return Err("cannot trace more than one world; add --seed S".to_owned());
    }
    Ok(Some(Options { first: first.unwrap_or(0), count, trace, jobs, fleets }))
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("tenure-sim: {message}\n\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    if options.trace {
        let outcome = World::run(options.first, None, true);
        return report(options.first, &options, outcome.violation);
    }
    let started = Instant::now();
    let summary = match options.fleets {
        Some(size) => {
            campaign::run_each(options.first, options.count, options.jobs, |seed| storm::run(seed, size, None))
        }
        None => campaign::run(options.first, options.count, None, options.jobs),
    };
    print!("{summary}");
    println!("took {:.1?}", started.elapsed());
    match summary.failure {
        Some((seed, violation)) => report(seed, &options, Some(violation)),
        None => report(options.first, &options, None),
    }
}

fn report(seed: u64, options: &Options, violation: Option<tenure_sim::world::Violation>) -> ExitCode {
    match violation {
        Some(violation) => {
            println!("VIOLATED with seed {seed} at {}s: {}", violation.at, violation.invariant);
            println!("  {}", violation.message);
            let how = match options.fleets {
                Some(FleetSize::Small) => "--fleets small",
                Some(FleetSize::Large) => "--fleets large",
                None => "--trace",
            };
            println!("  replay with: cargo xtask sim --seed {seed} {how}");
            ExitCode::FAILURE
        }
        None => {
            println!("every invariant held");
            ExitCode::SUCCESS
        }
    }
}
