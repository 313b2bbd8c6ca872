//! A minimal web server that records its requests, and a minimal client.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::ports;

/// A request as the server received it.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// Time at which the request began.
    pub began: Instant,
    /// Time at which the response began. `None` before that.
    pub ended: Option<Instant>,
    /// The requested path.
    pub path: String,
    /// The headers, by their lower-case names.
    pub headers: BTreeMap<String, String>,
}

/// Maps a path to a delay and a complete response, headers included.
type Handler = dyn Fn(&str) -> (Duration, String) + Send + Sync;

/// A web server that tests can inspect.
pub struct WebServer {
    address: SocketAddr,
    listener: TcpListener,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl WebServer {
    /// Starts a server that responds to every request with `200` and the path.
    pub fn start() -> Self {
        Self::with_handler(|path| (Duration::ZERO, ok_response(path)))
    }

    /// Starts a server with TLS. Returns it with the file of its self-signed certificate.
    pub fn with_tls(folder: &Path) -> (Self, PathBuf) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let file = folder.join("certificate.pem");
        std::fs::write(&file, made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let config = Arc::new(config);
        let wrap = move |stream| StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
        (Self::serve_on(wrap, |path| (Duration::ZERO, ok_response(path))), file)
    }

    /// Starts a server with its own handler.
    pub fn with_handler(answer: impl Fn(&str) -> (Duration, String) + Send + Sync + 'static) -> Self {
        Self::serve_on(|stream| stream, answer)
    }

    fn serve_on<S: Read + Write>(
        wrap: impl Fn(TcpStream) -> S + Clone + Send + 'static,
        answer: impl Fn(&str) -> (Duration, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, requests) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<ReceivedRequest>>>::default());
        let (answer, incoming, seen): (Arc<Handler>, _, _) =
            (Arc::new(answer), listener.try_clone().unwrap(), requests.clone());
        thread::spawn(move || {
            for stream in incoming.incoming() {
                let Ok(stream) = stream else { return };
                let (wrap, answer, seen) = (wrap.clone(), answer.clone(), seen.clone());
                thread::spawn(move || serve(wrap(stream), &*answer, &seen));
            }
        });
        Self { address, listener, requests }
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests, in order.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        ports::close(&self.listener);
    }
}

/// A `200` response with this body.
pub fn ok_response(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn serve(stream: impl Read + Write, answer: &Handler, requests: &Mutex<Vec<ReceivedRequest>>) {
    let mut reader = BufReader::new(stream);
    while let Some((path, headers)) = read_head(&mut reader) {
        let request = ReceivedRequest { began: Instant::now(), ended: None, path: path.clone(), headers };
        let number = {
            let mut requests = requests.lock().unwrap();
            requests.push(request);
            requests.len() - 1
        };
        let (after, text) = answer(&path);
        thread::sleep(after);
        if let Some(request) = requests.lock().unwrap().get_mut(number) {
            request.ended = Some(Instant::now());
        }
        if reader.get_mut().write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

fn read_head(reader: &mut impl BufRead) -> Option<(String, BTreeMap<String, String>)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split_whitespace().nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => drop(headers.insert(name.to_ascii_lowercase(), value.trim().to_owned())),
            None => return Some((path, headers)),
        }
    }
}

/// A connection for several requests, one after another.
pub struct HttpConnection(BufReader<TcpStream>, String);

impl HttpConnection {
    /// Connects.
    pub fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream), address.to_owned())
    }

    /// Sends a request. Returns the status and the body, or `None` without a response.
    pub fn request(&mut self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let (address, length) = (&self.1, body.len());
        let request = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n\r\n{body}");
        self.0.get_mut().write_all(request.as_bytes()).ok()?;
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        let status = line.split_whitespace().nth(1)?.parse().ok()?;
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            self.0.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let (name, value) = line.split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).ok()?;
        Some((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

/// Opens a connection whose buffers hold almost no unread data.
pub fn connect_with_tiny_buffer(address: &str) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let address: SocketAddr = address.parse().unwrap();
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 1).unwrap();
    connect(&socket, &address).unwrap();
    socket.into()
}

/// Sends one request to a web server. Returns the status and the body, or `None` without a response.
pub fn request(address: &str, method: &str, path: &str, headers: &[&str], body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
    .ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
