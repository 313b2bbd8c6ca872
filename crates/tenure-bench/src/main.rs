//! Benchmarks of Tenure against the raw store, in the same run: `cargo xtask bench NAME`.
//!
//! Machines differ and are noisy, so every row is a ratio: raw and Tenure alternate, and medians are compared. The last
//! line on stdout is JSON.

mod child;
mod election;
mod lease;
mod measure;
mod plain_loop;
mod poll_records;
mod polled_server;
mod pool;
mod raw_redis;
mod raw_sqlite;
mod serve;
mod table;
mod takeover;

use std::process::ExitCode;

const HELP: &str = "\
Measure Tenure against the raw store, in the same run

Usage: tenure-bench NAME [--quick] [--only WORD]

  lease      one lease and many, on Redis and on SQLite
  election   time without a leader, and cost of an election for the server
  pool       time until a fleet's targets are balanced, and cost for the server
  serve      cost of `tenure serve` over a plain polling loop; one measurement, so without --only

  --only     only rows whose name contains this word: Redis, SQLite, hand-over, …
  --quick    fewer repetitions; checks that the benchmark runs, the numbers mean nothing

The exit status says whether the benchmark ran; the table and the JSON say whether each bar was met";

/// Exit status for wrong usage, as in `sysexits.h`.
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (bench, quick, only) = match words.as_slice() {
        [bench @ ("lease" | "election" | "pool")] => (*bench, false, ""),
        [bench @ ("lease" | "election" | "pool"), "--quick"] => (*bench, true, ""),
        [bench @ ("lease" | "election" | "pool"), "--only", word] => (*bench, false, *word),
        [bench @ ("lease" | "election" | "pool"), "--quick", "--only", word] => (*bench, true, *word),
        ["serve"] => ("serve", false, ""),
        ["serve", "--quick"] => ("serve", true, ""),
        // The child process in which `lease` measures the memory of leases.
        ["memory", url, count] => {
            return match count.parse().map_err(Into::into).and_then(|count| lease::measure_memory(url, count)) {
                Ok(bytes) => {
                    println!("{bytes}");
                    ExitCode::SUCCESS
                }
                Err(error) => failed(&*error),
            };
        }
        // The instance that `pool` kills.
        ["member", url, targets, millis] => {
            let member = targets.parse().map_err(Into::into).and_then(|targets| {
                pool::run_instance(url, targets, std::time::Duration::from_millis(millis.parse()?))
            });
            return exit_code(member);
        }
        // The server that `serve` polls, and the plain loop that polls it, too.
        ["target"] => return exit_code(polled_server::serve()),
        ["plain-loop", target, store, sessions] => {
            return exit_code(
                sessions.parse().map_err(Into::into).and_then(|count| plain_loop::run(target, store, count)),
            );
        }
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let measured = match bench {
        "lease" => lease::run(quick, only),
        "election" => election::run(quick, only),
        "serve" => serve::run(quick),
        _ => pool::run(quick, only),
    };
    match measured {
        Ok(table) => {
            table.print();
            ExitCode::SUCCESS
        }
        Err(error) => failed(&*error),
    }
}

fn exit_code(how: Result<(), Box<dyn std::error::Error>>) -> ExitCode {
    match how {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&*error),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("tenure-bench: {error}");
    ExitCode::FAILURE
}
