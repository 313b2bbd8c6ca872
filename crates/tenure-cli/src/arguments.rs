//! The command line: commands, flags and their help.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use tenure_serve::result_settings::{self, BackoffSetting};

use crate::duration;

/// Heading in `--help` of the flags that every command has.
const GLOBAL_HEADING: &str = "Settings of every command";

/// One leader per role, on the Redis you already run, or on a file for the processes of one host.
#[derive(Debug, Parser)]
#[command(
    name = "tenure",
    version,
    max_term_width = 110,
    after_help = "\
Every flag can be set in the environment (--drain-timeout as TENURE_DRAIN_TIMEOUT) and in the file of --config (drain-timeout = \"10s\"). A flag beats the environment, \
which beats the file. Booleans are true/false, 1/0 or yes/no.

Exit status: 0 done, 1 the answer is no, 64 wrong usage, 69 store unreachable or refusing, 70 internal error, 71 the system refuses (cannot listen on the --listen address, too few files or threads), 73 cannot write the folder \
of the embedded store or the file of --output, 75 not leader, 76 lease lost while the command was running.

Examples:
  tenure --store redis://redis.internal run nightly-report -- /usr/local/bin/report
  tenure --store redis://redis.internal status --json"
)]
pub struct Arguments {
    #[command(flatten)]
    pub store: StoreArguments,
    #[command(flatten)]
    pub log: LogArguments,
    /// TOML file with the same settings, such as `store = "redis://…"`; flags and the environment take precedence
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL_HEADING)]
    pub config: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long, global = true, help_heading = GLOBAL_HEADING)]
    pub json: bool,
    #[command(subcommand)]
    pub command: CliCommand,
}

impl Arguments {
    /// Returns the log level that applies without `--log-level`. Commands other than `serve` and `run` are not
    /// instances of the fleet and print their own errors.
    pub fn default_log_level(&self) -> LogLevel {
        match self.command {
            CliCommand::Run(_) | CliCommand::Serve(_) => LogLevel::Info,
            CliCommand::Watch(_) => LogLevel::Warn,
            _ => LogLevel::Error,
        }
    }
}

/// The store and the names of its keys.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = GLOBAL_HEADING)]
pub struct StoreArguments {
    /// Store of the leases: sqlite:PATH, redis://[user:password@]host[:port][/db], rediss://… for TLS
    /// (?ca=FILE&cert=FILE&key=FILE&server-name=NAME; system roots without ca) or memory:
    /// [default: a file on this host, in /var/lib/tenure for root, in ~/.local/state/tenure for other users]
    #[arg(long, global = true, value_name = "URL")]
    pub store: Option<String>,
    /// Prefix of every key, as `NAME:`, so that deployments can share a store
    #[arg(long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Grant leases on a new server at once, instead of waiting until it is older than any lease. Only for a server
    /// that nothing has used before its start; no effect while others are connected or its data is known to be lost
    #[arg(long, global = true)]
    pub bootstrap: bool,
    /// Grant leases right after a server restart, because it loses no data. No effect when a loss is proven
    #[arg(long, global = true)]
    pub durable: bool,
    /// Key prefix of the leases of sessions
    #[arg(long, global = true, default_value = "poll:lease:", hide = true)]
    pub keys_lease: String,
    /// Key prefix of the heartbeats of instances
    #[arg(long, global = true, default_value = "poll:node:", hide = true)]
    pub keys_node: String,
    /// Key prefix of sessions
    #[arg(long, global = true, default_value = "session:", hide = true)]
    pub keys_session: String,
    /// Key prefix of leaderships
    #[arg(long, global = true, default_value = "leader:", hide = true)]
    pub keys_leader: String,
    /// Key prefix of the heartbeats of candidates, before the role
    #[arg(long, global = true, default_value = "heartbeat:", hide = true)]
    pub keys_heartbeat: String,
}

/// Log settings.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = GLOBAL_HEADING)]
pub struct LogArguments {
    /// Format of log lines [default: text on a terminal, json otherwise]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log: Option<LogFormat>,
    /// Lowest level to log: debug, info, warn, error or off; the reason of a failed command is always printed
    /// [default: info for serve and run, warn for watch, error otherwise]
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
    /// Run one instance of the polling service; the running instances share all sessions, and one instance polls each
    Serve(ServeArguments),
    /// Run a command only while leading a role
    Run(RunArguments),
    /// Manage sessions directly in the store
    #[command(
        subcommand,
        after_help = "\
Examples:
  tenure session add --url https://example.org/health --interval 10s
  tenure --store redis://redis.internal session ls"
    )]
    Session(SessionCommand),
    /// Print instances, holders of sessions, and sessions that are unheld or unreadable
    #[command(after_help = "\
Examples:
  tenure status
  tenure --store redis://redis.internal status --json")]
    Status,
    /// Print the leader of a role; exit 1 if it has none
    Leader(LeaderArguments),
    /// Ask the leader of a role to hand over; exit 0 when it has
    StepDown(StepDownArguments),
    /// Take an instance out of placement; exit 0 when it has handed over all sessions
    #[command(after_help = "\
Examples:
  tenure drain api-1
  tenure --store redis://redis.internal drain api-1 --wait 5m")]
    Drain(DrainArguments),
    /// Put an instance back into placement
    #[command(after_help = "\
Examples:
  tenure undrain api-1
  tenure --store redis://redis.internal undrain api-1 --json")]
    Undrain(DrainArguments),
    /// End the current term of a lease by force
    Revoke(RevokeArguments),
    /// Print lease and election events of the whole fleet as they occur
    Watch(WatchArguments),
    /// List roles, and forget roles without a leader
    #[command(
        subcommand,
        after_help = "\
Examples:
  tenure role ls
  tenure --store redis://redis.internal role rm nightly-report"
    )]
    Role(RoleCommand),
    /// End a quarantine by hand, after listing the last known holders
    Reopen(ReopenArguments),
    /// Guards a command; started by `run`.
    #[command(name = "__guard", hide = true)]
    Guardian(GuardianArguments),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Start it on every replica, on the same store; no other configuration is needed. SIGTERM or SIGINT hands over all sessions and leaves the fleet; a second signal ends the process at once.

Every client of the API can set polled URLs. Link-local and metadata addresses are never polled; loopback and private networks only when the API listens on loopback without a token, or \
when --allow-targets names them.

Examples:
  tenure serve --store redis://redis.internal
  tenure serve --store redis://redis.internal --listen [::]:8368 --api-token-file /etc/tenure/token")]
pub struct ServeArguments {
    /// Address of the API; an address other than loopback needs a token
    #[arg(long, default_value = "127.0.0.1:8368", value_parser = parse_address, value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Beginning of the instance id; keep it across restarts, so that the instance gets its sessions back
    /// [default: the host name]
    #[arg(long, value_name = "HOST")]
    pub name: Option<String>,
    /// Length of each lease: the longest time after a crash until a session is polled again
    #[arg(long, default_value = "30s", value_parser = duration::parse, value_name = "DURATION")]
    pub ttl: Duration,
    /// Renewal interval of each lease [default: a third of the ttl]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub renew_every: Option<Duration>,
    /// Time that a heartbeat is valid [default: the ttl]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub heartbeat_ttl: Option<Duration>,
    /// Longest interval between heartbeats [default: a third of the ttl]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub heartbeat_every: Option<Duration>,
    /// Interval of looking for changed sessions and instances that no announcement reported
    #[arg(long, default_value = "10s", value_parser = duration::parse, value_name = "DURATION")]
    pub discover_every: Duration,
    /// Time without changes before sessions are rebalanced [default: a tenth of the ttl, at most 3s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub settle: Option<Duration>,
    /// Time to hand over sessions at shutdown
    #[arg(long, default_value = "10s", value_parser = duration::parse, value_name = "DURATION")]
    pub drain_timeout: Duration,
    /// Hand over a role (janitor, aggregator) after this long without progress [default: never]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub stall_after: Option<Duration>,
    /// Return the sessions of a stopped instance when it restarts within 10 min with the same --name: on or off
    #[arg(long, default_value = "on", action = clap::ArgAction::Set, value_parser = parse_switch, value_name = "on|off")]
    pub hand_back: bool,
    /// Number of sessions relative to other instances
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub weight: f64,
    /// File with the token that API clients must send
    #[arg(long, value_name = "FILE")]
    pub api_token_file: Option<PathBuf>,
    /// Listen on an address other than loopback without a token
    #[arg(long)]
    pub insecure: bool,
    /// Bytes to keep of the body of each session's last result; the history keeps 1 KiB of each
    #[arg(long, default_value = "64KiB", value_parser = result_settings::parse_body_size, value_name = "SIZE")]
    pub max_body: usize,
    /// Number of results to keep of each session
    #[arg(long, default_value = "100", value_parser = result_settings::parse_result_count, value_name = "N")]
    pub keep_results: usize,
    /// Backoff for a failing target: on (at least one poll per minute), off, or the longest pause
    #[arg(long, default_value = "on", value_name = "on|off|DURATION")]
    pub backoff: BackoffSetting,
    /// Private networks that may be polled [default: none]
    #[arg(long, value_delimiter = ',', value_parser = parse_network, value_name = "CIDR,…")]
    pub allow_targets: Vec<ipnet::IpNet>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The command gets TENURE_ROLE, TENURE_INSTANCE and TENURE_TOKEN in its environment. Send the token with every external write, \
and reject smaller tokens there.

Exit status: that of the command (128 + n when signal n killed it, 127 when it was not found, 126 when it cannot be run); 64 wrong usage, 69 store \
unreachable (with --no-wait, or when --wait ran out), 75 not leader (with --no-wait, or when --wait ran out), 76 lease lost while the command was running.

Examples:
  tenure run nightly-report --once-per 24h -- /usr/local/bin/report
  tenure --store redis://redis.internal run worker --restart --ttl 15s -- ./worker --verbose")]
pub struct RunArguments {
    /// Role to lead; at most one leader on all machines that share the store
    pub role: String,
    /// Beginning of the instance id [default: the host name]
    #[arg(long, value_name = "HOST")]
    pub name: Option<String>,
    /// Length of the lease: the longest time after a crash until another machine takes over
    #[arg(long, default_value = "30s", value_parser = duration::parse, value_name = "DURATION")]
    pub ttl: Duration,
    /// Longest time to wait for the leadership; conflicts with --no-wait [default: no timeout]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub wait: Option<Duration>,
    /// Exit instead of waiting for the leadership
    #[arg(long)]
    pub no_wait: bool,
    /// Run the command again when it ends or after the leadership was lost
    #[arg(long)]
    pub restart: bool,
    /// Skip the run if any instance started one within this interval and completed it, with whatever status; with
    /// --restart, run the command again after the interval [default: never skip]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub once_per: Option<Duration>,
    /// Time between SIGTERM and SIGKILL [default: a sixth of the ttl, at most 5s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub stop_timeout: Option<Duration>,
    /// End the command and release the leadership after this long without progress; the command reports progress by
    /// touching the file in TENURE_PROGRESS [default: never]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub stall_after: Option<Duration>,
    /// Let the command inherit TENURE_STORE even if it contains a password
    #[arg(long)]
    pub pass_store: bool,
    /// Command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Create a session and print its id
    Add(SessionAdd),
    /// List all sessions
    #[command(after_help = "\
Examples:
  tenure session ls
  tenure --store redis://redis.internal session ls --json")]
    Ls,
    /// Print the last result of a session; exit 1 if there is none
    Result(SessionResult),
    /// Pause a session; exit 1 if it does not exist
    #[command(after_help = "\
Examples:
  tenure session pause 0192f0c1-2e4e-7f00-8000-000000000001
  tenure --store redis://redis.internal session pause 0192f0c1-2e4e-7f00-8000-000000000001")]
    Pause(SessionId),
    /// Resume a paused session; exit 1 if it does not exist
    #[command(after_help = "\
Examples:
  tenure session resume 0192f0c1-2e4e-7f00-8000-000000000001
  tenure --store redis://redis.internal session resume 0192f0c1-2e4e-7f00-8000-000000000001")]
    Resume(SessionId),
    /// Delete a session, readable or not; exit 1 if it does not exist
    Rm(SessionRm),
    /// Print all sessions with the values of their headers, one JSON object per line; exit 1 if some were left out
    Export(SessionExport),
    /// Create sessions from lines of JSON on stdin and print the ids of new ones; exit 1 if some were refused
    #[command(after_help = "\
Examples:
  tenure session import < sessions.jsonl
  tenure session export | tenure --store redis://redis.internal session import")]
    Import,
}

#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// List all roles that ever had a leader, with their leaders
    #[command(after_help = "\
Examples:
  tenure role ls
  tenure --store redis://redis.internal role ls --json")]
    Ls,
    /// Forget a role without a leader; exit 1 if it has one
    Rm(RoleName),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure role rm nightly-report
  tenure --store redis://redis.internal role rm nightly-report --json")]
pub struct RoleName {
    /// Role
    pub role: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure session add --url https://example.org/health
  tenure session add --url http://10.0.0.7:9100/ --interval 10s --header 'X-Key: @/etc/tenure/key'")]
pub struct SessionAdd {
    /// URL to poll
    #[arg(long, value_name = "U")]
    pub url: String,
    /// Display name
    #[arg(long = "name", value_name = "N")]
    pub session_name: Option<String>,
    /// Poll interval, 100ms to 24h [default: 5s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub interval: Option<Duration>,
    /// Timeout of a poll, 50ms to 5m [default: 2s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub timeout: Option<Duration>,
    /// Header to send with each poll, repeatable; the value `@FILE` reads it from a file
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = crate::commands::session::parse_header)]
    pub headers: Vec<(String, String)>,
    /// Bytes to keep of the last result's body [default: the instance's setting]
    #[arg(long, value_parser = result_settings::parse_body_size, value_name = "SIZE")]
    pub max_body: Option<usize>,
    /// Number of results to keep [default: the instance's setting]
    #[arg(long, value_parser = result_settings::parse_result_count, value_name = "N")]
    pub keep_results: Option<usize>,
    /// Backoff when the target fails: on, off, or the longest pause [default: the instance's setting]
    #[arg(long, value_name = "on|off|DURATION")]
    pub backoff: Option<BackoffSetting>,
    /// Create the session paused
    #[arg(long)]
    pub paused: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure session export > sessions.jsonl
  tenure --store redis://redis.internal session export --output /var/backups/sessions.jsonl")]
pub struct SessionExport {
    /// File to replace atomically, readable by its owner only; never replaced by an empty export, which exits 1
    /// [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure session result 0192f0c1-2e4e-7f00-8000-000000000001
  tenure session result 0192f0c1-2e4e-7f00-8000-000000000001 --history 10 --json")]
pub struct SessionResult {
    #[command(flatten)]
    pub session: SessionId,
    /// Number of latest results to print, newest first; bodies are cut at 1 KiB [default: the last result, whole]
    #[arg(long, value_parser = result_settings::parse_result_count, value_name = "N")]
    pub history: Option<usize>,
}

#[derive(Debug, Args)]
pub struct SessionId {
    /// Id of the session
    #[arg(value_parser = crate::commands::session::parse_id)]
    pub id: uuid::Uuid,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure session rm 0192f0c1-2e4e-7f00-8000-000000000001
  tenure session rm session:not-a-uuid")]
pub struct SessionRm {
    /// Id of the session, or its whole key, as listed by `session ls` and `status`
    #[arg(allow_hyphen_values = true)]
    pub id: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure leader nightly-report
  tenure --store redis://redis.internal leader poll:lease:0192f0c1-2e4e-7f00-8000-000000000001")]
pub struct LeaderArguments {
    /// Role; or a lease, a session id, a pool target or a whole key, to print its holder
    pub role: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure step-down nightly-report
  tenure --store redis://redis.internal step-down nightly-report --to api-2 --wait 10s")]
pub struct StepDownArguments {
    /// Role
    pub role: String,
    /// Candidate to hand over to: its id or the beginning of it [default: any candidate]
    #[arg(long, value_name = "INSTANCE")]
    pub to: Option<String>,
    /// Longest time to wait for the hand-over
    #[arg(long, default_value = "1m", value_parser = duration::parse, value_name = "DURATION")]
    pub wait: Duration,
}

#[derive(Debug, Args)]
pub struct DrainArguments {
    /// Instance: its id or the beginning of it
    pub instance: String,
    /// Longest time to wait until it is done
    #[arg(long, default_value = "1m", value_parser = duration::parse, value_name = "DURATION")]
    pub wait: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The holder learns of it at its next renewal at the latest and works until then. The lease is granted again only after the holder has released it or the ttl has passed.

Examples:
  tenure revoke nightly-report
  tenure --store redis://redis.internal revoke 0192f0c1-2e4e-7f00-8000-000000000001")]
pub struct RevokeArguments {
    /// Role, lease, session id, pool target or whole key
    #[arg(value_name = "NAME")]
    pub lease: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure watch
  tenure --store redis://redis.internal watch --all --json")]
pub struct WatchArguments {
    /// Print the recorded terms first
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
After a loss of data the store grants no lease until every lease from before must have expired. Reopen it earlier only if no \
holder from before is alive: its work would overlap with that of the next holder.

Examples:
  tenure reopen
  tenure --store redis://redis.internal reopen --yes --json")]
pub struct ReopenArguments {
    /// Skip the confirmation
    #[arg(long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct GuardianArguments {
    /// Name of the cgroup that the guardian may create for the command
    #[arg(long)]
    pub cgroup: String,
    /// Command and its arguments
    #[arg(required = true, last = true)]
    pub command: Vec<OsString>,
}

/// Parses `on` or `off`, or a synonym.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => Ok(true),
        "off" | "false" | "no" | "0" => Ok(false),
        _ => Err("must be on or off".to_owned()),
    }
}

/// Parses an address and a port; resolves a host name.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let form = "expected an address and a port, such as 127.0.0.1:8368, localhost:8368 or [::]:8368";
    if text.trim_start_matches(':').parse::<u16>().is_ok() {
        return Err(format!("the address is missing: {form}"));
    }
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if !has_port {
        return Err(format!("the port is missing: {form}"));
    }
    let mut found = text.to_socket_addrs().map_err(|error| format!("{error}; {form}"))?;
    found.next().ok_or_else(|| format!("the name has no address; {form}"))
}

fn parse_network(text: &str) -> Result<ipnet::IpNet, String> {
    let form = "expected a network such as 10.0.0.0/8 or fd00::/8";
    if let Some((address, length)) = text.split_once('/')
        && let Ok(address) = address.parse::<IpAddr>()
    {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if !length.parse::<u8>().is_ok_and(|length| length <= longest) {
            return Err(format!("the length of the prefix must be a number up to {longest}, got {length:?}; {form}"));
        }
    }
    match (text.parse(), text.parse::<IpAddr>()) {
        (Ok(network), _) => Ok(network),
        (Err(_), Ok(address)) => {
            let whole = if address.is_ipv4() { 32 } else { 128 };
            Err(format!("the length of the prefix is missing: {text}/{whole} is this address only, {text}/8 a network"))
        }
        (Err(error), Err(_)) => Err(format!("{error}; {form}")),
    }
}
