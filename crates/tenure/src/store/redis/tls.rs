//! TLS: the trusted certificates, our own certificate, and the meaning of a failed handshake.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::store::{ErrorKind, StoreError};

/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// The hint for a server that does not answer it.
const PLAIN_PORT_HINT: &str = "if the server does not speak TLS on this port, use its TLS port or redis://";

/// The TLS options of the URL.
#[derive(Clone, Default)]
pub(super) struct TlsOptions {
    /// The certificates to trust, instead of the system's.
    pub(super) ca: Option<PathBuf>,
    /// Our own certificate, and its key.
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host of the URL.
    pub(super) server_name: Option<String>,
}

/// The TLS configuration of connections.
#[derive(Clone)]
pub(super) struct Tls {
    options: TlsOptions,
    server_name: ServerName<'static>,
    /// The caller's own configuration, instead of the options.
    config_override: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// Reads all files once, so that errors in them are reported at the start.
    pub(super) fn new(host: &str, options: TlsOptions) -> Result<Self, StoreError> {
        let name = options.server_name.as_deref().unwrap_or(host).to_owned();
        let server_name = ServerName::try_from(name.clone())
            .map_err(|_| bad(format!("{name:?} is not a name that a certificate can have; set `server-name`")))?;
        let tls = Self { options, server_name, config_override: None };
        tls.config()?;
        Ok(tls)
    }

    /// Replaces the options by the caller's own configuration.
    pub(super) fn with_config(mut self, config: Arc<ClientConfig>) -> Self {
        self.config_override = Some(config);
        self
    }

    /// Encrypts a connection. Files are read again each time: certificates are replaced while programs run.
    pub(super) async fn handshake(
        &self,
        stream: TcpStream,
        location: &str,
    ) -> Result<TlsStream<TcpStream>, StoreError> {
        let config = match &self.config_override {
            Some(config) => config.clone(),
            None => Arc::new(self.config()?),
        };
        let handshake = TlsConnector::from(config).connect(self.server_name.clone(), stream);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(result) => result.map_err(|error| self.explain(location, &error)),
            // A Redis server without TLS waits for the end of a line.
            Err(_) => {
                let why = format!("no answer to the TLS handshake within {HANDSHAKE_TIMEOUT:?}; {PLAIN_PORT_HINT}");
                Err(super::failure::unreachable(location, &why))
            }
        }
    }

    fn config(&self) -> Result<ClientConfig, StoreError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(format!("cannot set up TLS: {error}")))?
            .with_root_certificates(self.roots()?);
        match (&self.options.cert, &self.options.key) {
            (None, None) => Ok(builder.with_no_client_auth()),
            (Some(cert), Some(key)) => {
                let chain = certificates("cert", cert)?;
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| cannot_read("key", key, &error))?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|error| bad(format!("cannot use `cert` with `key`: {error}")))
            }
            (Some(_), None) => Err(bad("`cert` needs `key`, the file with its private key".to_owned())),
            (None, Some(_)) => Err(bad("`key` needs `cert`, the file with its certificate".to_owned())),
        }
    }

    fn roots(&self) -> Result<RootCertStore, StoreError> {
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &self.options.ca {
            for certificate in certificates("ca", ca)? {
                roots.add(certificate).map_err(|error| cannot_read("ca", ca, &error))?;
            }
            return Ok(roots);
        }
        // The system may have certificates that cannot be read; the others suffice.
        let found = rustls_native_certs::load_native_certs();
        let (usable, _) = roots.add_parsable_certificates(found.certs);
        if usable == 0 {
            let message =
                "the system has no certificates to trust; install ca-certificates, or name yours with `?ca=FILE`";
            return Err(bad(message.to_owned()));
        }
        Ok(roots)
    }

    /// Explains a failed handshake in one line.
    fn explain(&self, location: &str, error: &std::io::Error) -> StoreError {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        let name = self.server_name.to_str();
        let why = match cause {
            Some(rustls::Error::InvalidCertificate(reason)) => match reason {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
                    "the server's certificate is not signed by {}; name the right CA with `?ca=FILE`",
                    if self.options.ca.is_some() { "the CA in `ca`" } else { "a CA that the system trusts" }
                ),
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "the server's certificate has expired; renew it, or check this machine's clock".to_owned()
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    "the server's certificate is not valid yet; check this machine's clock".to_owned()
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
                    "the server's certificate is not valid for {name}; name the host as in the certificate, or set `?server-name=NAME`"
                ),
                other => format!("the server's certificate cannot be used: {other:?}"),
            },
            Some(rustls::Error::InvalidMessage(_)) => {
                format!("the answer to the TLS handshake is not TLS; {PLAIN_PORT_HINT}")
            }
            Some(rustls::Error::AlertReceived(alert)) => super::failure::tls_alert(&format!("{alert:?}")),
            Some(other) => format!("the TLS handshake failed: {other}"),
            // Cut short: by the link, by a server that is stopping, or by one that does not use TLS and hangs up.
            None => {
                let why = format!("the TLS handshake was cut short ({error}); check that this is its TLS port");
                return super::failure::unreachable(location, &why);
            }
        };
        StoreError::new(ErrorKind::Configuration, format!("{location}: {why}"))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn certificates(option: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let read = CertificateDer::pem_file_iter(file).map_err(|error| cannot_read(option, file, &error))?;
    let found = read.collect::<Result<Vec<_>, _>>().map_err(|error| cannot_read(option, file, &error))?;
    if found.is_empty() {
        return Err(cannot_read(option, file, &"no certificate found"));
    }
    Ok(found)
}

fn cannot_read(option: &str, file: &Path, why: &dyn fmt::Display) -> StoreError {
    bad(format!("cannot read `{option}` from {}: {why}; it must be a PEM file", file.display()))
}

fn bad(message: String) -> StoreError {
    StoreError::new(ErrorKind::Address, message)
}
