//! A private Redis server for a test.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use crate::clock::{self, FakeClock};
use crate::ports::Port;
use crate::{Certificate, CertificateAuthority, RawConnection, RedisRelease, RedisReply, children, servers};

/// Timeout for the first reply of a server. Only an overloaded machine needs this long.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of start attempts before the failure is not a coincidence.
const MAX_START_ATTEMPTS: usize = 5;
/// The user of the testbed itself, for servers that require authentication.
const OWN_USER: &str = "testbed";
const OWN_PASSWORD: &str = "testbed-own-password";

/// The files in the folder that are not the server's data.
const CONFIG_FILE: &str = "redis.conf";
const LOG_FILE: &str = "log.txt";
const OUTPUT_FILE: &str = "output.txt";
const CLOCK_FILE: &str = "clock";

/// A private Redis server: a process with its own port and folder. By default it keeps nothing on disk. It is killed
/// when the value is dropped, and when the test process ends in any way.
#[derive(Debug)]
pub struct RedisServer {
    binary: PathBuf,
    port: Port,
    /// The port for TLS, if enabled.
    tls_port: Option<Port>,
    folder: TempDir,
    clock: Option<FakeClock>,
    /// Whether a connection must authenticate.
    requires_auth: bool,
    child: Mutex<Option<Child>>,
}

/// The options of a [`RedisServer`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RedisBuilder {
    binary: Option<PathBuf>,
    settings: Vec<(String, String)>,
    users: Vec<String>,
    requires_auth: bool,
    own_clock: bool,
    tls: Option<TlsFiles>,
}

/// The TLS files of a server.
#[derive(Clone, Debug)]
struct TlsFiles {
    own: Certificate,
    ca: PathBuf,
    requires_client_cert: bool,
}

impl RedisBuilder {
    /// Enables TLS on a separate port, with this certificate.
    pub fn tls(mut self, own: Certificate, authority: &CertificateAuthority) -> Self {
        self.tls = Some(TlsFiles { own, ca: authority.file(), requires_client_cert: false });
        self
    }

    /// Enables TLS and requires a client certificate of the authority.
    pub fn mutual_tls(mut self, own: Certificate, authority: &CertificateAuthority) -> Self {
        self.tls = Some(TlsFiles { own, ca: authority.file(), requires_client_cert: true });
        self
    }

    /// Sets the `redis-server` to run. The default is [`servers::default_server`].
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Runs this release.
    ///
    /// # Panics
    /// If it is not on this machine; check with [`servers::find`] first.
    pub fn release(self, release: RedisRelease) -> Self {
        let path = servers::find(release).unwrap_or_else(|| panic!("cannot find {release}; run `cargo xtask test`"));
        self.binary(path)
    }

    /// Adds a directive of `redis.conf`: `("maxmemory", "10mb")`. A value of several words becomes several arguments.
    pub fn directive(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Keeps the data in an append-only file; `fsync` is `always`, `everysec` or `no`. With each of them, acknowledged
    /// writes survive [`RedisServer::kill`]: only a machine failure loses unsynced data.
    pub fn append_only(self, fsync: &str) -> Self {
        self.directive("appendonly", "yes").directive("appendfsync", fsync)
    }

    /// Requires this password from the user `default`.
    pub fn password(mut self, password: &str) -> Self {
        self.requires_auth = true;
        self.directive("requirepass", &quoted(password))
    }

    /// Adds these users, each as in `redis.conf`: `user bob on >secret ~* &* +@all -eval`.
    pub fn acl_users(mut self, users: &[&str]) -> Self {
        self.requires_auth = true;
        self.users.extend(users.iter().map(|&line| line.to_owned()));
        self
    }

    /// Gives the server its own wall clock, which [`RedisServer::step_clock`] steps forward and back.
    pub fn own_clock(mut self) -> Self {
        self.own_clock = true;
        self
    }

    /// Starts the server and waits until it replies.
    ///
    /// # Panics
    /// If it does not start; the message contains its log. If its own clock was requested and is [not
    /// available](RedisServer::can_fake_time).
    pub fn start(self) -> RedisServer {
        let binary = self.binary.clone().unwrap_or_else(servers::default_server);
        for attempt in 1.. {
            let folder = tempfile::Builder::new().prefix("tenure-redis-").tempdir().unwrap();
            let clock = self.own_clock.then(|| {
                FakeClock::new(folder.path()).unwrap_or_else(|| {
                    panic!("cannot find libfaketime; run `cargo xtask test` or `apt install libfaketime`")
                })
            });
            let server = RedisServer {
                binary: binary.clone(),
                port: Port::reserve(),
                tls_port: self.tls.as_ref().map(|_| Port::reserve()),
                folder,
                clock,
                requires_auth: self.requires_auth,
                child: Mutex::new(None),
            };
            fs::write(
                server.path(CONFIG_FILE),
                self.settings(
                    server.port(),
                    server.tls_port.as_ref().map(Port::number),
                    server.path(LOG_FILE).as_path(),
                ),
            )
            .unwrap();
            match server.launch() {
                Ok(()) => return server,
                // A process outside the testbed may have taken the port meanwhile.
                Err(StartFailure::Ended(_)) if attempt < MAX_START_ATTEMPTS && server.address_was_in_use() => {}
                Err(failure) => server.panic_with_log(&failure),
            }
        }
        unreachable!("the last attempt gives up")
    }

    fn settings(&self, port: u16, tls_port: Option<u16>, log: &Path) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| writeln!(text, "{name} {value}").unwrap();
        line("bind", "127.0.0.1");
        line("port", &port.to_string());
        line("dir", &quoted(&log.parent().unwrap_or(log).display().to_string()));
        line("logfile", &quoted(&log.display().to_string()));
        line("save", "\"\"");
        line("appendonly", "no");
        // A replica gets the data without delay.
        line("repl-diskless-sync-delay", "0");
        for (name, value) in &self.settings {
            line(name, value);
        }
        if let (Some(tls), Some(port)) = (&self.tls, tls_port) {
            line("tls-port", &port.to_string());
            line("tls-cert-file", &quoted(&tls.own.cert.display().to_string()));
            line("tls-key-file", &quoted(&tls.own.key.display().to_string()));
            line("tls-ca-cert-file", &quoted(&tls.ca.display().to_string()));
            line("tls-auth-clients", if tls.requires_client_cert { "yes" } else { "no" });
        }
        if self.requires_auth {
            line("user", &format!("{OWN_USER} on >{OWN_PASSWORD} ~* &* +@all"));
        }
        for user in &self.users {
            line("user", user.trim_start().trim_start_matches("user "));
        }
        text
    }
}

/// Why a server did not start.
#[derive(Debug)]
enum StartFailure {
    NotStarted(io::Error),
    Ended(String),
    Silent(String),
}

impl RedisServer {
    /// Starts a server without persistence and authentication.
    ///
    /// # Panics
    /// If there is no `redis-server`, or it does not start.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder for a server.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// Returns whether a server can have [its own clock](RedisBuilder::own_clock) on this machine.
    pub fn can_fake_time() -> bool {
        cfg!(target_os = "linux") && clock::faketime_library().is_some()
    }

    /// The port, which stays the same for the lifetime of the value.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// The URL with a user; the user is `default` if there is only a password. Neither may contain characters that are
    /// special in a URL.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@{}/", self.address())
    }

    /// The TLS URL with this host name and settings such as `ca=FILE`.
    ///
    /// # Panics
    /// If the server does not use TLS.
    pub fn tls_url(&self, host: &str, settings: &str) -> String {
        let port = self.tls_port.as_ref().map_or_else(|| panic!("the server does not use TLS"), Port::number);
        format!("rediss://{host}:{port}/?{settings}")
    }

    /// The folder with the data and the log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The path of the `redis-server` binary.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// The pid of the process.
    ///
    /// # Panics
    /// If it is not running.
    pub fn pid(&self) -> u32 {
        self.child().as_ref().unwrap_or_else(|| panic!("the server is not running")).id()
    }

    /// Kills the server like a power cut and waits until it is gone. Its data on disk stays.
    pub fn kill(&self) {
        let Some(mut child) = self.child().take() else { return };
        // Neither fails for a child that was not waited for.
        let _ = child.kill();
        let _ = child.wait();
        if self.clock.is_some() {
            clock::clean_up_after(child.id());
        }
    }

    /// Stops the process at an arbitrary point, like a machine that hangs: its connections stay open, and the kernel
    /// completes new ones. Returns when it has stopped.
    ///
    /// # Panics
    /// If it is not running.
    pub fn stop(&self) {
        let pid = self.signal(Signal::STOP);
        // Until the signal arrives, the server may do more.
        let seen = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), seen).unwrap();
    }

    /// Resumes it after [`stop`](Self::stop).
    ///
    /// # Panics
    /// If it is not running.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Starts it at the same port with its data on disk, and waits until it replies. A running server is killed first.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        for attempt in 1.. {
            self.kill();
            match self.launch() {
                Ok(()) => return,
                Err(StartFailure::Ended(_)) if attempt < MAX_START_ATTEMPTS && self.address_was_in_use() => {
                    thread::sleep(Duration::from_millis(200));
                }
                Err(failure) => self.panic_with_log(&failure),
            }
        }
    }

    /// Starts it at the same port without data. A running server is killed first.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_empty(&self) {
        self.kill();
        for entry in fs::read_dir(self.folder()).unwrap() {
            let path = entry.unwrap().path();
            let is_data = path
                .file_name()
                .is_some_and(|name| ![CONFIG_FILE, LOG_FILE, OUTPUT_FILE, CLOCK_FILE].iter().any(|own| name == *own));
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else if is_data {
                fs::remove_file(path).unwrap();
            }
        }
        self.restart();
    }

    /// Writes all data to disk now. A server without an append-only file has this data after
    /// [`restart`](Self::restart), and no later writes.
    ///
    /// # Panics
    /// If the save fails.
    pub fn save(&self) {
        assert_eq!(self.command(&["SAVE"]), RedisReply::text("OK"), "{}", self.log());
    }

    /// Writes all data to disk and shuts down, as an operator would.
    ///
    /// # Panics
    /// If it does not exit.
    pub fn shutdown_save(&self) {
        // It exits without a reply.
        let reply = self.try_command(&["SHUTDOWN", "SAVE"]);
        assert!(reply.is_err(), "the server refused to shut down: {reply:?}");
        let end = Instant::now() + START_TIMEOUT;
        while self.child().as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            assert!(Instant::now() < end, "the server did not shut down in time:\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }

    /// Makes it a replica of another server, and waits until it has the primary's data.
    ///
    /// # Panics
    /// If it does not become a replica.
    pub fn replicate_from(&self, primary: &Self) {
        let reply = self.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
        assert_eq!(reply.as_text(), "OK", "the server refused to become a replica");
        let end = Instant::now() + START_TIMEOUT;
        while !self.command(&["INFO", "replication"]).as_text().contains("master_link_status:up") {
            assert!(Instant::now() < end, "the replica did not sync with its primary in time:\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Steps its wall clock forward or back, on top of all earlier steps. The step takes effect at once.
    ///
    /// # Panics
    /// If it does not have [its own clock](RedisBuilder::own_clock).
    pub fn step_clock(&self, by: Duration, forward: bool) {
        let clock = self
            .clock
            .as_ref()
            .unwrap_or_else(|| panic!("cannot step the clock: the server does not have its own clock"));
        clock.step(by, forward);
    }

    /// The time of its wall clock, since 1970.
    ///
    /// # Panics
    /// If it does not reply.
    pub fn time(&self) -> Duration {
        match self.command(&["TIME"]).as_array() {
            [seconds, microseconds] => {
                let number = |reply: &RedisReply| u64::try_from(reply.as_int()).unwrap();
                Duration::from_secs(number(seconds)) + Duration::from_micros(number(microseconds))
            }
            other => panic!("not a valid reply to TIME: {other:?}"),
        }
    }

    /// Runs a command over a new connection with all permissions.
    ///
    /// # Panics
    /// If there is no reply. An error reply counts as a reply.
    pub fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> RedisReply {
        self.try_command(words).unwrap_or_else(|error| panic!("no reply from the server: {error}\n{}", self.log()))
    }

    /// Like [`command`](Self::command), for a server that may be down.
    ///
    /// # Errors
    /// If there is no reply.
    pub fn try_command<W: AsRef<[u8]>>(&self, words: &[W]) -> io::Result<RedisReply> {
        self.connect()?.command(words)
    }

    /// Runs a command as this user. The error reply to a wrong password counts as a reply, too.
    ///
    /// # Panics
    /// If there is no reply.
    pub fn command_as<W: AsRef<[u8]>>(&self, user: &str, password: &str, words: &[W]) -> RedisReply {
        let run = || {
            let mut connection = RawConnection::open(self.address())?;
            match connection.command(&["AUTH", user, password])? {
                RedisReply::Error(refusal) => Ok(RedisReply::Error(refusal)),
                _ => connection.command(words),
            }
        };
        run().unwrap_or_else(|error: io::Error| panic!("no reply from the server: {error}\n{}", self.log()))
    }

    /// Sends all commands at once over a new connection with all permissions.
    ///
    /// # Panics
    /// If a reply is missing.
    pub fn pipeline<W: AsRef<[u8]>>(&self, commands: &[&[W]]) -> Vec<RedisReply> {
        let run = || self.connect()?.pipeline(commands);
        run().unwrap_or_else(|error| panic!("no reply from the server: {error}\n{}", self.log()))
    }

    /// Opens a connection with all permissions.
    ///
    /// # Errors
    /// If the server is down.
    pub fn connect(&self) -> io::Result<RawConnection> {
        let mut connection = RawConnection::open(self.address())?;
        if self.requires_auth {
            // A server that is loading refuses AUTH as well. It repeats that error to the next command.
            connection.command(&["AUTH", OWN_USER, OWN_PASSWORD])?;
        }
        Ok(connection)
    }

    /// The server's log since it was created, for the message of a failing test.
    pub fn log(&self) -> String {
        let read = |name| fs::read(self.path(name)).unwrap_or_default();
        let bytes = [read(OUTPUT_FILE), read(LOG_FILE)].concat();
        format!("--- {} at port {}:\n{}---", self.binary.display(), self.port(), String::from_utf8_lossy(&bytes))
    }

    fn launch(&self) -> Result<(), StartFailure> {
        let output =
            File::options().create(true).append(true).open(self.path(OUTPUT_FILE)).map_err(StartFailure::NotStarted)?;
        let mut command = children::command(&self.binary);
        command.arg(self.path(CONFIG_FILE)).current_dir(self.folder());
        command.stdin(std::process::Stdio::null());
        command.stderr(output.try_clone().map_err(StartFailure::NotStarted)?).stdout(output);
        if let Some(clock) = &self.clock {
            clock.apply_to(&mut command);
        }
        let child = children::spawn(command).map_err(StartFailure::NotStarted)?;
        let pid = child.id();
        *self.child() = Some(child);

        let end = Instant::now() + START_TIMEOUT;
        loop {
            let ended = self.child().as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                self.kill();
                return Err(StartFailure::Ended(status.to_string()));
            }
            let why = match self.check_ready(pid) {
                Ok(None) => return Ok(()),
                Ok(Some(reply)) => format!("it replies {reply:?}"),
                Err(error) => error.to_string(),
            };
            if Instant::now() >= end {
                self.kill();
                return Err(StartFailure::Silent(why));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns `None` if the process with this pid replies, otherwise the reply.
    fn check_ready(&self, pid: u32) -> io::Result<Option<RedisReply>> {
        let mut connection = self.connect()?;
        let pong = connection.command(&["PING"])?;
        if pong != RedisReply::text("PONG") {
            return Ok(Some(pong));
        }
        // Another server at our port would reply as well.
        let info = connection.command(&["INFO", "server"])?;
        let ours = format!("process_id:{pid}");
        let is_ours = matches!(&info, RedisReply::Text(text) if text.lines().any(|line| line == ours));
        Ok((!is_ours).then_some(info))
    }

    fn address_was_in_use(&self) -> bool {
        self.log().contains("Address already in use")
    }

    fn panic_with_log(&self, failure: &StartFailure) -> ! {
        let what = match failure {
            StartFailure::NotStarted(error) => format!("could not be started: {error}"),
            StartFailure::Ended(status) => format!("exited at once with {status}"),
            StartFailure::Silent(why) => format!("was not ready within {START_TIMEOUT:?}: {why}"),
        };
        panic!("redis-server {what}\n{}", self.log());
    }

    fn signal(&self, signal: Signal) -> Pid {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
        pid
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Ignores a panic in another test, so that the server is still killed.
    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Quotes a word for `redis.conf`.
fn quoted(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', r"\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_has_the_address_and_the_directives() {
        let builder =
            RedisServer::builder().directive("maxmemory", "10mb").password("a\"b").acl_users(&["user bob on"]);
        assert_eq!(
            builder.settings(7, None, Path::new("/a folder/log.txt")),
            "bind 127.0.0.1\nport 7\ndir \"/a folder\"\nlogfile \"/a folder/log.txt\"\nsave \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n\
             maxmemory 10mb\nrequirepass \"a\\\"b\"\n\
             user testbed on >testbed-own-password ~* &* +@all\nuser bob on\n"
        );
    }
}
