//! Starts child processes that never outlive the tests.
//!
//! A test run can be killed or time out without running any of our code. So each child asks the kernel to kill it when
//! its parent ends. To the kernel the parent is the *thread* that started the child, and the thread of a test ends with
//! the test, long before a server that tests share. One thread that never ends therefore starts all children.

use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, OnceLock};
use std::thread;

struct SpawnRequest {
    command: Command,
    answer: Sender<io::Result<Child>>,
}

static SPAWNER: LazyLock<Sender<SpawnRequest>> = LazyLock::new(|| {
    let (sender, orders) = channel::<SpawnRequest>();
    let deliver = move || {
        for SpawnRequest { mut command, answer } in orders {
            // The requesting test may have panicked since.
            if let Err(unwanted) = answer.send(command.spawn())
                && let Ok(mut child) = unwanted.0
            {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    };
    thread::Builder::new().name("testbed children".to_owned()).spawn(deliver).unwrap();
    sender
});

/// A command for the program. It ends with this process, where the system supports that.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    if !can_bind_to_parent() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Starts the command from the thread that never ends.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    let (answer, child) = channel();
    SPAWNER.send(SpawnRequest { command, answer }).map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}

fn can_bind_to_parent() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let mut trial = Command::new("setpriv");
        trial.args(["--pdeathsig", "KILL", "--", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
        trial.status().is_ok_and(|status| status.success())
    })
}
