//! `tenure`: poll targets with a fleet, run a command only while leading a role, inspect and manage leases and leaders.

mod arguments;
mod commands;
mod duration;
mod exit;
mod logging;
mod notice;
mod output;
mod resources;
mod run;
mod secrets;
mod serve;
mod settings;
mod stderr;
mod store;

use std::process::ExitCode;

use crate::notice::failure;
use arguments::{Arguments, CliCommand};
use exit::CliError;

fn main() -> ExitCode {
    let arguments = match settings::read() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    // The guardian must be single-threaded, so it runs before any thread is started.
    if let CliCommand::Guardian(guard) = &arguments.command {
        return run::guardian::run(guard);
    }
    logging::start(&arguments.log, arguments.default_log_level());
    let code = run_command(arguments);
    stderr::flush();
    ExitCode::from(code)
}

fn run_command(arguments: Arguments) -> u8 {
    if let Err(why) = resources::check() {
        failure!("{why}");
        return exit::OS_ERROR;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            failure!("cannot start: {error}");
            return exit::OS_ERROR;
        }
    };
    let done = runtime.block_on(execute(arguments));
    // Do not wait for name lookups that the system has not finished.
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(failure) => {
            failure!("{failure}");
            failure.code()
        }
    }
}

async fn execute(arguments: Arguments) -> Result<u8, CliError> {
    let Arguments { command, store, json, .. } = arguments;
    store.check_keys()?;
    match command {
        CliCommand::Serve(serve) => serve::serve(&store, serve).await,
        CliCommand::Run(run) => run::run(&store, run).await,
        CliCommand::Session(session) => commands::session::manage(&store, session, json).await,
        CliCommand::Status => commands::status::print(&store, json).await,
        CliCommand::Leader(leader) => commands::leader::print(&store, leader, json).await,
        CliCommand::StepDown(step_down) => commands::step_down::request(&store, step_down, json).await,
        CliCommand::Drain(drain) => commands::drain::request(&store, drain, true, json).await,
        CliCommand::Undrain(drain) => commands::drain::request(&store, drain, false, json).await,
        CliCommand::Revoke(revoke) => commands::revoke::revoke(&store, revoke, json).await,
        CliCommand::Watch(watch) => commands::watch::watch(&store, watch, json).await,
        CliCommand::Reopen(reopen) => commands::reopen::reopen(&store, reopen, json).await,
        CliCommand::Role(role) => commands::role::manage(&store, role, json).await,
        CliCommand::Guardian(_) => Ok(exit::DONE),
    }
}
