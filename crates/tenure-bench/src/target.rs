//! What is polled: a web server that answers everything alike, and writes down when each poll was due and when it came.
//!
//! It is a process of its own, so that what it costs is counted for nobody.

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::time::SystemTime;

use tenure_testbed::web;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use crate::part::Part;
use crate::visits::Visit;

/// What it says when it is polled, as a service says how it is.
const BODY: &str = r#"{"status":"ok","version":"4.2.1","uptime_seconds":86400,"checks":{"database":{"status":"ok","latency_ms":1.25},"queue":{"status":"ok","depth":17},"disk":{"status":"ok","free_bytes":52428800}},"build":"0123456789abcdef"}"#;

/// Where it tells what came since it was last asked.
const VISITS: &str = "/visits";

/// A target that runs.
pub struct Target {
    _part: Part,
    address: String,
}

impl Target {
    pub fn start() -> Result<Self, Box<dyn Error>> {
        let (part, address) = Part::of_this_program(&["target"])?;
        Ok(Self { _part: part, address })
    }

    /// What is polled for session so-and-so begins with this and ends with its number.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// What has come since this was last asked.
    pub fn visits(&self) -> Result<Vec<Visit>, Box<dyn Error>> {
        let (_, body) = web::ask(&self.address, "GET", VISITS, &[], "").ok_or("the target does not answer")?;
        body.lines().map(|line| Visit::read(line).ok_or_else(|| format!("{line:?} is no visit").into())).collect()
    }
}

/// A target until nobody needs it any more.
pub fn serve() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(LocalSet::new().run_until(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("READY {}", listener.local_addr()?);
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::exit(0);
        });
        let visits = Rc::<RefCell<Vec<Visit>>>::default();
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let visits = visits.clone();
            tokio::task::spawn_local(async move { converse(stream, &visits).await });
        }
    }))
}

/// Answers until whoever asks has had enough.
async fn converse(mut stream: TcpStream, visits: &RefCell<Vec<Visit>>) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(1_024);
    loop {
        head.clear();
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let came = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let head = String::from_utf8_lossy(&head);
        let path = head.split(' ').nth(1).unwrap_or_default();
        if path == VISITS {
            let seen: String = visits.take().iter().map(Visit::written).collect();
            return stream.write_all(web::ok(&seen).as_bytes()).await;
        }
        let due = head.lines().find_map(|line| line.strip_prefix("tenure-due: ")?.parse().ok());
        if let (Ok(session), Some(due)) = (path.trim_start_matches('/').parse(), due) {
            let came = u64::try_from(came.as_micros()).unwrap_or(u64::MAX);
            visits.borrow_mut().push(Visit { session, due, came });
        }
        stream.write_all(web::ok(BODY).as_bytes()).await?;
    }
}
