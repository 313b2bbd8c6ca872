//! `tenure`: poll many targets with a fleet, run a command only while leading a role, and see and steer who leads.

mod arguments;
mod commands;
mod duration;
mod exit;
mod logging;
mod notice;
mod output;
mod run;
mod secrets;
mod serve;
mod settings;
mod store;

use std::process::ExitCode;

use crate::notice::failure;
use arguments::{Arguments, Command};
use exit::Failure;

fn main() -> ExitCode {
    let arguments = match settings::read() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    // Before anything is started: it must have one thread.
    if let Command::Guard(guard) = &arguments.command {
        return run::guardian::watch_over(guard);
    }
    logging::start(&arguments.log, arguments.usual_log_level());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            failure!("cannot start: {error}");
            return ExitCode::from(exit::SOFTWARE);
        }
    };
    let done = runtime.block_on(obey(arguments));
    // Whatever the system is still looking up is waited for by nobody.
    runtime.shutdown_background();
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure!("{failure}");
            ExitCode::from(failure.code())
        }
    }
}

async fn obey(arguments: Arguments) -> Result<u8, Failure> {
    let Arguments { command, store, json, .. } = arguments;
    match command {
        Command::Serve(serve) => serve::serve(&store, serve).await,
        Command::Run(run) => run::run(&store, run).await,
        Command::Session(session) => commands::session::manage(&store, session, json).await,
        Command::Status => commands::status::print(&store, json).await,
        Command::Leader(leader) => commands::leader::print(&store, leader, json).await,
        Command::StepDown(step_down) => commands::step_down::ask(&store, step_down, json).await,
        Command::Drain(drain) => commands::drain::ask(&store, drain, true, json).await,
        Command::Undrain(drain) => commands::drain::ask(&store, drain, false, json).await,
        Command::Revoke(revoke) => commands::revoke::revoke(&store, revoke, json).await,
        Command::Watch(watch) => commands::watch::watch(&store, watch, json).await,
        Command::Reopen(reopen) => commands::reopen::reopen(&store, reopen, json).await,
        Command::Role(role) => commands::role::manage(&store, role, json).await,
        Command::Guard(_) => Ok(exit::DONE),
    }
}
