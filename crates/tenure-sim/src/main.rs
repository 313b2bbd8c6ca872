//! The simulator's command line.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Instant;

use tenure_sim::campaign;
use tenure_sim::fleet::storm::{self, FleetSize};
use tenure_sim::reduction::{self, Reduction};
use tenure_sim::world::{Violation, World, WorldOptions, WorldOutcome};

/// How much of a trace is printed by itself.
const LINES: usize = 60;

const USAGE: &str = "\
Run Tenure's decision code in simulated worlds, one per seed.

Usage: tenure-sim [--fleets small|large] [--seeds N] [--seed S] [--trace] [--jobs N]
                  [--faults N,N… | none] [--processes N,N…] [--plain-users]

  --fleets       simulate fleets that share targets, instead of single leases
  --seeds N      number of worlds (default 1000)
  --seed S       first seed (default 0); without --seeds, run only this one
  --trace        print everything that was observed; one world only
  --jobs N       number of threads (default: one per core)
  --faults       let only these faults of a world happen, by their numbers in the trace
  --processes    run only these processes
  --plain-users  let users only acquire and work: no hand-over, no revocation, no hang

A world that fails is reduced to the faults and processes that are needed for the same failure, and traced.

Exits with 0 if every invariant held, 1 if one was violated, 64 for wrong usage.";

struct Options {
    first: u64,
    count: u64,
    trace: bool,
    jobs: usize,
    fleets: Option<FleetSize>,
    reduction: Reduction,
}

impl Options {
    /// Runs one world.
    fn run(&self, seed: u64, reduction: &Reduction, has_trace: bool) -> WorldOutcome {
        match self.fleets {
            Some(size) => storm::run_reduced(seed, size, None, reduction.clone()),
            None => World::run(seed, WorldOptions { mutation: None, reduction: reduction.clone(), has_trace }),
        }
    }
}

/// Numbers that are separated by commas.
fn numbers(text: &str) -> Result<BTreeSet<usize>, String> {
    if text == "none" {
        return Ok(BTreeSet::new());
    }
    let number = |word: &str| word.parse().map_err(|_| format!("{word:?} is not a number; separate them by commas"));
    text.split(',').map(number).collect()
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let (mut first, mut count, mut trace, mut fleets) = (None, None, false, None);
    let mut reduction = Reduction::default();
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
        if flag == "--faults" || flag == "--processes" {
            let listed = Some(numbers(&args.next().ok_or(format!("{flag} needs numbers"))?)?);
            *(if flag == "--faults" { &mut reduction.faults } else { &mut reduction.processes }) = listed;
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
            "--plain-users" => reduction.plain_users = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    let count = count.unwrap_or(if first.is_some() { 1 } else { 1_000 });
    if count == 0 {
        return Err("--seeds must be at least 1, got 0".to_owned());
    }
    if trace && count != 1 {
        return Err("cannot trace more than one world; add --seed S".to_owned());
    }
    Ok(Some(Options { first: first.unwrap_or(0), count, trace, jobs, fleets, reduction }))
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
        let outcome = options.run(options.first, &options.reduction, true);
        outcome.trace.iter().for_each(|line| println!("{line}"));
        return match outcome.violation {
            Some(violation) => failed(options.first, &violation),
            None => held(),
        };
    }
    let started = Instant::now();
    let summary = campaign::run_each(options.first, options.count, options.jobs, |seed| {
        options.run(seed, &options.reduction, false)
    });
    print!("{summary}");
    println!("took {:.1?}", started.elapsed());
    let Some((seed, violation)) = summary.failure else { return held() };
    let code = failed(seed, &violation);
    explain(seed, &options);
    code
}

fn held() -> ExitCode {
    println!("every invariant held");
    ExitCode::SUCCESS
}

fn failed(seed: u64, violation: &Violation) -> ExitCode {
    println!("VIOLATED with seed {seed} at {}s: {}", violation.at, violation.invariant);
    println!("  {}", violation.message);
    ExitCode::FAILURE
}

/// Prints the end of the smallest world that fails alike.
fn explain(seed: u64, options: &Options) {
    let whole = options.run(seed, &options.reduction, false);
    let smallest = reduction::reduce(&whole, |reduction| options.run(seed, reduction, false));
    let outcome = options.run(seed, &smallest.reduction, true);
    let kept = |numbers: &Option<BTreeSet<usize>>, all: usize| numbers.as_ref().map_or(all, BTreeSet::len);
    println!(
        "\nThe smallest world found that fails alike, among {}: {} of {} faults, {} of {} processes.",
        smallest.trials,
        kept(&smallest.reduction.faults, whole.faults),
        whole.faults,
        kept(&smallest.reduction.processes, whole.processes),
        whole.processes,
    );
    let skipped = outcome.trace.len().saturating_sub(LINES);
    if skipped > 0 {
        println!("(the last {LINES} lines of its trace)");
    }
    outcome.trace.iter().skip(skipped).for_each(|line| println!("{line}"));
    if let Some(violation) = &outcome.violation {
        println!("{}  VIOLATED: {}: {}", violation.at, violation.invariant, violation.message);
    }
    let fleets = match options.fleets {
        Some(FleetSize::Small) => " --fleets small",
        Some(FleetSize::Large) => " --fleets large",
        None => "",
    };
    println!("\nreplay: cargo xtask sim --seed {seed}{fleets}{} --trace", smallest.reduction);
}
