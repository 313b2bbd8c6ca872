//! The polled server: it responds to every request alike, and records when each poll was due and when it arrived.
//!
//! It runs in its own process, so that its CPU time is not counted.

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::time::SystemTime;

use tenure_testbed::web;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use crate::child::ChildProcess;
use crate::poll_records::PollRecord;

/// The response body, like a health report of a service.
const BODY: &str = r#"{"status":"ok","version":"4.2.1","uptime_seconds":86400,"checks":{"database":{"status":"ok","latency_ms":1.25},"queue":{"status":"ok","depth":17},"disk":{"status":"ok","free_bytes":52428800}},"build":"0123456789abcdef"}"#;

/// Path that returns the polls since the last request to it.
const RECORDS_PATH: &str = "/poll_records";

/// A running polled server.
pub struct PolledServer {
    _child: ChildProcess,
    address: String,
}

impl PolledServer {
    pub fn start() -> Result<Self, Box<dyn Error>> {
        let (child, address) = ChildProcess::start_self(&["target"])?;
        Ok(Self { _child: child, address })
    }

    /// Prefix of the URL that is polled; the number of the session follows.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The polls since the last call.
    pub fn poll_records(&self) -> Result<Vec<PollRecord>, Box<dyn Error>> {
        let (_, body) =
            web::request(&self.address, "GET", RECORDS_PATH, &[], "").ok_or("no response from the polled server")?;
        body.lines()
            .map(|line| PollRecord::parse(line).ok_or_else(|| format!("{line:?} is not a valid poll record").into()))
            .collect()
    }
}

/// Serves until stdin is closed.
pub fn serve() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(LocalSet::new().run_until(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("READY {}", listener.local_addr()?);
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::exit(0);
        });
        let poll_records = Rc::<RefCell<Vec<PollRecord>>>::default();
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let poll_records = poll_records.clone();
            tokio::task::spawn_local(async move { handle_connection(stream, &poll_records).await });
        }
    }))
}

/// Responds to requests until the client closes the connection.
async fn handle_connection(mut stream: TcpStream, poll_records: &RefCell<Vec<PollRecord>>) -> std::io::Result<()> {
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
        if path == RECORDS_PATH {
            let seen: String = poll_records.take().iter().map(PollRecord::encode).collect();
            return stream.write_all(web::ok_response(&seen).as_bytes()).await;
        }
        let due = head.lines().find_map(|line| line.strip_prefix("tenure-due: ")?.parse().ok());
        if let (Ok(session), Some(due)) = (path.trim_start_matches('/').parse(), due) {
            let came = u64::try_from(came.as_micros()).unwrap_or(u64::MAX);
            poll_records.borrow_mut().push(PollRecord { session, due, came });
        }
        stream.write_all(web::ok_response(BODY).as_bytes()).await?;
    }
}
