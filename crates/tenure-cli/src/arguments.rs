//! What can be asked of the program.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use tenure_serve::result_settings::{self, BackoffSetting};

use crate::duration;

/// The heading of flags that every command has.
const GLOBAL_HEADING: &str = "Settings of every command";

/// One leader per role, on the Redis you already run, or on a file for the processes of one host.
#[derive(Debug, Parser)]
#[command(
    name = "tenure",
    version,
    max_term_width = 110,
    after_help = "\
Every flag can be set by the environment (--drain-timeout as TENURE_DRAIN_TIMEOUT) and by the file that --config names (drain-timeout = \"10s\"); a flag comes before the environment \
before the file. Booleans are true/false, 1/0 or yes/no.

Exit status: 0 done, 1 the answer is no, 64 wrong usage, 69 the store cannot be reached or refuses, 70 an error of the program itself, 71 the address of --listen cannot be used, 73 the folder \
of the embedded store, or the file of --output, cannot be written, 75 not leader, 76 the lease was lost while the command was running."
)]
pub struct Arguments {
    #[command(flatten)]
    pub store: StoreArguments,
    #[command(flatten)]
    pub log: LogArguments,
    /// A TOML file with the same settings: `store = "redis://…"`; flags and the environment come before it
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL_HEADING)]
    pub config: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long, global = true, help_heading = GLOBAL_HEADING)]
    pub json: bool,
    #[command(subcommand)]
    pub command: CliCommand,
}

impl Arguments {
    /// What is logged unless a level is given. A command that asks and answers is no instance: it says what went wrong itself.
    pub fn default_log_level(&self) -> LogLevel {
        match self.command {
            CliCommand::Run(_) | CliCommand::Serve(_) => LogLevel::Info,
            CliCommand::Watch(_) => LogLevel::Warn,
            _ => LogLevel::Error,
        }
    }
}

/// Where the leases are.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = GLOBAL_HEADING)]
pub struct StoreArguments {
    /// sqlite:PATH, redis://[user:password@]host[:port][/db], rediss://… for TLS (?ca=FILE&cert=FILE&key=FILE&server-name=NAME; without ca the system's roots) or memory: [default: a file of this host's, in /var/lib/tenure for root, in ~/.local/state/tenure for others]
    #[arg(long, global = true, value_name = "URL")]
    pub store: Option<String>,
    /// Put before every key as `NAME:`, so that deployments can share a store
    #[arg(long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The server is new: do not wait for it to grow older than any lease could be. Only when nothing has used it before it was started; has no effect while others are connected or its data is known to be lost
    #[arg(long, global = true)]
    pub bootstrap: bool,
    /// A restart of the server loses nothing: do not wait for its leases to expire. Has no effect when a loss is proven
    #[arg(long, global = true)]
    pub durable: bool,
    /// The prefix of the leases of sessions
    #[arg(long, global = true, default_value = "poll:lease:", hide = true)]
    pub keys_lease: String,
    /// The prefix of the keys that say which instance lives
    #[arg(long, global = true, default_value = "poll:node:", hide = true)]
    pub keys_node: String,
    /// The prefix of the keys of sessions
    #[arg(long, global = true, default_value = "session:", hide = true)]
    pub keys_session: String,
    /// The prefix of leader keys
    #[arg(long, global = true, default_value = "leader:", hide = true)]
    pub keys_leader: String,
    /// The prefix of the heartbeats of candidates, before the role
    #[arg(long, global = true, default_value = "heartbeat:", hide = true)]
    pub keys_heartbeat: String,
}

/// What is said, and how.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = GLOBAL_HEADING)]
pub struct LogArguments {
    /// How log lines are written [default: text on a terminal, json otherwise]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log: Option<LogFormat>,
    /// What is written: debug, info, warn, error or off; why a command fails always is [default: info for serve and run, error otherwise]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
    Off,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// One instance of the polling service: sessions are shared out over all that run, and each is polled by one
    Serve(ServeArguments),
    /// Run a command only while leading a role
    Run(RunArguments),
    /// Manage what is polled, straight on the store
    #[command(subcommand)]
    Session(SessionCommand),
    /// Print who is there, who holds which session, and what nobody holds or can read
    Status,
    /// Print who leads a role; exit 1 if nobody does
    Leader(LeaderArguments),
    /// Ask the leader of a role to hand over; exit 0 when it has
    StepDown(StepDownArguments),
    /// Take an instance out of placement; exit 0 when it has given everything away
    Drain(DrainArguments),
    /// Let an instance take part again
    Undrain(DrainArguments),
    /// End the current term of a lease by force
    Revoke(RevokeArguments),
    /// Print lease and election events of the whole fleet as they happen
    Watch(WatchArguments),
    /// List roles, and forget those that are no longer led
    #[command(subcommand)]
    Role(RoleCommand),
    /// End a quarantine by hand, after listing who was last known to hold what
    Reopen(ReopenArguments),
    /// Watches over a command; `run` starts it.
    #[command(name = "__guard", hide = true)]
    Guardian(GuardianArguments),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Start it on every replica, on the same store; nothing else is configured. SIGTERM or SIGINT gives everything away and leaves the fleet; a second signal ends it at once.

Polled URLs come from whoever may use the API. Link-local and metadata addresses are never polled; loopback and private networks only when the API listens on loopback without a token, or \
when --allow-targets names them.")]
pub struct ServeArguments {
    /// Where the API listens; beyond loopback it needs a token
    #[arg(long, default_value = "127.0.0.1:8368", value_parser = parse_address, value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// A name of its own, which its id begins with; the same after a restart, so that it gets back what it had [default: the host's name]
    #[arg(long, value_name = "HOST")]
    pub name: Option<String>,
    /// The length of each lease: how long after a crash a session is polled again, at most
    #[arg(long, default_value = "30s", value_parser = duration::parse, value_name = "DURATION")]
    pub ttl: Duration,
    /// How often each is renewed [default: a third of the ttl]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub renew_every: Option<Duration>,
    /// For how long a heartbeat may be believed [default: the ttl]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub heartbeat_ttl: Option<Duration>,
    /// How often a heartbeat is sent, at least [default: a third of the ttl]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub heartbeat_every: Option<Duration>,
    /// How often sessions and instances are looked for although nothing was heard
    #[arg(long, default_value = "10s", value_parser = duration::parse, value_name = "DURATION")]
    pub discover_every: Duration,
    /// How long all must be quiet before sessions move for balance [default: 3s, or a tenth of the ttl]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub settle: Option<Duration>,
    /// How long sessions are given away for at the end
    #[arg(long, default_value = "10s", value_parser = duration::parse, value_name = "DURATION")]
    pub drain_timeout: Duration,
    /// Let another instance do the work of a role (janitor, aggregator) when this one has not got on with it for this long [default: never]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub stall_after: Option<Duration>,
    /// Whether sessions of an instance that stopped go back to it when it starts again under the same --name, within 10 min: on or off
    #[arg(long, default_value = "on", action = clap::ArgAction::Set, value_parser = parse_switch, value_name = "on|off")]
    pub hand_back: bool,
    /// How many sessions this instance should have, compared with the others
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub weight: f64,
    /// A file with the token that whoever uses the API has to know
    #[arg(long, value_name = "FILE")]
    pub api_token_file: Option<PathBuf>,
    /// Listen beyond loopback without a token
    #[arg(long)]
    pub insecure: bool,
    /// How much of the body of each session's last result is kept; the history keeps 1 KiB of each
    #[arg(long, default_value = "64KiB", value_parser = result_settings::parse_body_size, value_name = "SIZE")]
    pub max_body: usize,
    /// How many results of each session are kept
    #[arg(long, default_value = "100", value_parser = result_settings::parse_result_count, value_name = "N")]
    pub keep_results: usize,
    /// How a target that fails is backed off: on (once a minute at least), off, or the longest pause
    #[arg(long, default_value = "on", value_name = "on|off|DURATION")]
    pub backoff: BackoffSetting,
    /// Private networks that may be polled
    #[arg(long, value_delimiter = ',', value_parser = parse_network, value_name = "CIDR,…")]
    pub allow_targets: Vec<ipnet::IpNet>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The command is given TENURE_ROLE, TENURE_INSTANCE and TENURE_TOKEN. Pass the token on with every effect on the outside world, \
and refuse smaller ones there.

Exit status: that of the command (128 + n when it was killed by signal n, 127 when it was not found, 126 when it cannot be run); 64 wrong usage, 69 the store \
cannot be reached (with --no-wait, or when --wait ran out), 75 somebody else leads (likewise), 76 the lease was lost while the command was running.")]
pub struct RunArguments {
    /// The role: one at a time runs on all machines that share the store
    pub role: String,
    /// What the id of this instance begins with [default: the host's name]
    #[arg(long, value_name = "HOST")]
    pub name: Option<String>,
    /// The length of the lease: how long after a crash another machine takes over
    #[arg(long, default_value = "30s", value_parser = duration::parse, value_name = "DURATION")]
    pub ttl: Duration,
    /// Wait for the leadership no longer than this; not together with --no-wait [default: for ever]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub wait: Option<Duration>,
    /// Do not wait for the leadership
    #[arg(long)]
    pub no_wait: bool,
    /// Run the command again when it ends or when the leadership was lost
    #[arg(long)]
    pub restart: bool,
    /// Skip the run if any instance started one within this interval and completed it, with whatever status; with
    /// --restart, run it again when the interval has passed
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub once_per: Option<Duration>,
    /// The time that the command gets between SIGTERM and SIGKILL [default: 5s, or a sixth of the ttl]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub stop_timeout: Option<Duration>,
    /// End the command and let another machine lead when it has made no progress for this long: it touches the file named in TENURE_PROGRESS to say
    /// that it does [default: never]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub stall_after: Option<Duration>,
    /// Let the command inherit TENURE_STORE although it has a password in it
    #[arg(long)]
    pub pass_store: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Make a session, and print its id
    Add(SessionAdd),
    /// List all sessions
    Ls,
    /// Print the last result of a session; exit 1 if there is none
    Result(SessionResult),
    /// Leave a session alone for now; exit 1 if there is none
    Pause(SessionId),
    /// Poll it again
    Resume(SessionId),
    /// Delete a session, also one that cannot be polled; exit 1 if there is none
    Rm(SessionRm),
    /// Print all sessions, one line of JSON each, with the values of their headers; exit 1 if some were left out
    Export(SessionExport),
    /// Make the sessions whose lines are read from the input, and print the ids of new ones; exit 1 if some could not be made
    Import,
}

#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// List all roles that were ever led, and their leaders
    Ls,
    /// Forget a role that has no leader; exit 1 if it has one
    Rm(RoleName),
}

#[derive(Debug, Args)]
pub struct RoleName {
    /// The role
    pub role: String,
}

#[derive(Debug, Args)]
pub struct SessionAdd {
    /// What is polled
    #[arg(long, value_name = "U")]
    pub url: String,
    /// What people call it
    #[arg(long = "name", value_name = "N")]
    pub session_name: Option<String>,
    /// How often it is polled [default: 5s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub interval: Option<Duration>,
    /// How long an answer is waited for [default: 2s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub timeout: Option<Duration>,
    /// A header that is sent with each poll; can be given several times. `@FILE` as the value reads it from a file
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = crate::commands::session::parse_header)]
    pub headers: Vec<(String, String)>,
    /// How much of the last result's body is kept [default: what the instance keeps]
    #[arg(long, value_parser = result_settings::parse_body_size, value_name = "SIZE")]
    pub max_body: Option<usize>,
    /// How many results are kept [default: what the instance keeps]
    #[arg(long, value_parser = result_settings::parse_result_count, value_name = "N")]
    pub keep_results: Option<usize>,
    /// How the target is backed off when it fails: on, off, or the longest pause [default: what the instance does]
    #[arg(long, value_name = "on|off|DURATION")]
    pub backoff: Option<BackoffSetting>,
    /// Make it paused
    #[arg(long)]
    pub paused: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure session export > sessions.jsonl
  tenure --store redis://redis.internal session export --output /var/backups/tenure/sessions.jsonl")]
pub struct SessionExport {
    /// Replace this file in one step, readable by its owner alone; never by an empty export, which exits 1 [default: the output]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct SessionResult {
    #[command(flatten)]
    pub session: SessionId,
    /// Print this many of the latest results, the last first; their bodies are cut at 1 KiB
    #[arg(long, value_parser = result_settings::parse_result_count, value_name = "N")]
    pub history: Option<usize>,
}

#[derive(Debug, Args)]
pub struct SessionId {
    /// The session
    #[arg(value_parser = crate::commands::session::parse_id)]
    pub id: uuid::Uuid,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure session rm 0192f0c1-2e4e-7f00-8000-000000000001
  tenure session rm session:not-a-uuid")]
pub struct SessionRm {
    /// The session: its id, or its whole key, as `session ls` and `status` list it
    #[arg(allow_hyphen_values = true)]
    pub id: String,
}

#[derive(Debug, Args)]
pub struct LeaderArguments {
    /// A role; or a lease, a session's id, a target of a pool, or a whole key: then its holder
    pub role: String,
}

#[derive(Debug, Args)]
pub struct StepDownArguments {
    /// The role
    pub role: String,
    /// To this candidate: its id, or how that begins
    #[arg(long, value_name = "INSTANCE")]
    pub to: Option<String>,
    /// How long to wait for it
    #[arg(long, default_value = "1m", value_parser = duration::parse, value_name = "DURATION")]
    pub wait: Duration,
}

#[derive(Debug, Args)]
pub struct DrainArguments {
    /// The instance: its id, or how that begins
    pub instance: String,
    /// How long to wait for it
    #[arg(long, default_value = "1m", value_parser = duration::parse, value_name = "DURATION")]
    pub wait: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Whoever holds it is told at its next renewal at the latest, and works until then; nobody else is granted the lease before it has let go, or its ttl has passed.")]
pub struct RevokeArguments {
    /// A role, a lease, a session's id, a target of a pool, or a whole key
    #[arg(value_name = "NAME")]
    pub lease: String,
}

#[derive(Debug, Args)]
pub struct WatchArguments {
    /// Begin with what is on record
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
After a loss of data the store grants nothing until every lease from before must have expired. Reopen it earlier only if no \
holder from before is alive: work of one that is overlaps with the next holder's.

Examples:
  tenure reopen
  tenure --store redis://redis.internal reopen --yes --json")]
pub struct ReopenArguments {
    /// Do not ask for a confirmation
    #[arg(long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct GuardianArguments {
    /// The name of the cgroup that it may make for the command
    #[arg(long)]
    pub cgroup: String,
    /// The command and its arguments
    #[arg(required = true, last = true)]
    pub command: Vec<OsString>,
}

/// `on` or `off`, or another word for it.
fn parse_switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => Ok(true),
        "off" | "false" | "no" | "0" => Ok(false),
        _ => Err("it is on or off".to_owned()),
    }
}

/// An address and a port; a name is looked up.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let form = "an address and a port are needed, as in 127.0.0.1:8368, localhost:8368 or [::]:8368";
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if !has_port {
        return Err(format!("the port is missing: {form}"));
    }
    let mut found = text.to_socket_addrs().map_err(|error| format!("{error}; {form}"))?;
    found.next().ok_or_else(|| format!("the name stands for no address; {form}"))
}

fn parse_network(text: &str) -> Result<ipnet::IpNet, String> {
    match (text.parse(), text.parse::<IpAddr>()) {
        (Ok(network), _) => Ok(network),
        (Err(_), Ok(address)) => {
            let whole = if address.is_ipv4() { 32 } else { 128 };
            Err(format!(
                "the length of the prefix is missing: {text}/{whole} is this address alone, {text}/8 a network"
            ))
        }
        (Err(error), Err(_)) => Err(format!("{error}; a network is written 10.0.0.0/8 or fd00::/8")),
    }
}
