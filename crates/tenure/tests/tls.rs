//! Redis over TLS: real servers with certificates that the tests sign.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::sync::Arc;
use std::time::Duration;

use tenure::Tenure;
use tenure::store::redis::{Credentials, RedisStore};
use tenure::store::{ErrorKind, Keyspace};
use tenure_testbed::{CertificateAuthority, RedisServer};

const SERVER_NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// A server with a certificate of the authority.
fn server(authority: &CertificateAuthority) -> RedisServer {
    RedisServer::builder().tls(authority.sign("server", &SERVER_NAMES), authority).start()
}

fn ca(authority: &CertificateAuthority) -> String {
    format!("ca={}", authority.file().display())
}

/// Asserts that two instances can hold a lease in turn: the second waits until the release of the first is announced.
async fn assert_lease_works(url: &str) {
    let first = Tenure::builder(url).bootstrap().connect().await.unwrap();
    let second = Tenure::builder(url).bootstrap().connect().await.unwrap();
    let term = first.lease("job").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    assert!(second.lease("job").try_acquire().await.is_err());
    let waiting = tokio::spawn(async move { second.lease("job").acquire().await.map(|term| term.token()) });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let token = term.token();
    term.release().await.unwrap();
    // Long before the ttl: the announcement came over TLS, too.
    let next = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap().unwrap();
    assert!(next > token);
}

async fn connect_error(url: &str) -> tenure::store::StoreError {
    Tenure::builder(url).connect().await.unwrap_err().store_error().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_work_over_tls_by_name_and_by_address() {
    let authority = CertificateAuthority::new();
    let server = server(&authority);
    assert_lease_works(&server.tls_url("localhost", &ca(&authority))).await;
    assert_lease_works(&server.tls_url("127.0.0.1", &ca(&authority)).replace("rediss", "valkeys")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_name_can_be_another_than_the_host() {
    let authority = CertificateAuthority::new();
    let own = authority.sign("server", &["redis.internal"]);
    let server = RedisServer::builder().tls(own, &authority).start();
    let error = connect_error(&server.tls_url("localhost", &ca(&authority))).await;
    assert!(error.to_string().contains("not valid for localhost"), "{error}");
    assert!(error.to_string().contains("server-name=NAME") && !error.is_retryable(), "{error}");
    assert_lease_works(&server.tls_url("localhost", &format!("{}&server-name=redis.internal", ca(&authority)))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_is_refused_in_one_line() {
    let (authority, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let server = server(&authority);
    for (settings, whose) in [(ca(&other), "the CA in `ca`"), (String::new(), "a CA that the system trusts")] {
        let error = connect_error(&server.tls_url("localhost", &settings)).await;
        assert!(error.to_string().contains(whose) && error.to_string().contains("?ca=FILE"), "{error}");
        assert_eq!((error.kind(), error.to_string().lines().count()), (ErrorKind::Configuration, 1), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_refused_in_one_line() {
    let authority = CertificateAuthority::new();
    let own = authority.sign_expired("server", &SERVER_NAMES);
    let server = RedisServer::builder().tls(own, &authority).start();
    let error = connect_error(&server.tls_url("localhost", &ca(&authority))).await;
    assert!(error.to_string().contains("certificate has expired"), "{error}");
    assert_eq!((error.kind(), error.to_string().lines().count()), (ErrorKind::Configuration, 1), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_port_and_a_tls_port_are_told_apart() {
    let authority = CertificateAuthority::new();
    let server = server(&authority);
    let plain = server.url().replace("redis://", "rediss://");
    let error = connect_error(&format!("{plain}?{}", ca(&authority))).await;
    assert!(error.to_string().contains("if the server does not speak TLS on this port"), "{error}");
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    let tls = server.tls_url("127.0.0.1", "").replace("rediss://", "redis://").replace('?', "");
    let error = connect_error(&tls).await;
    assert!(error.to_string().contains("rediss://"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_require_client_certificates() {
    let authority = CertificateAuthority::new();
    let server = RedisServer::builder().mutual_tls(authority.sign("server", &SERVER_NAMES), &authority).start();
    let error = connect_error(&server.tls_url("localhost", &ca(&authority))).await;
    assert!(error.to_string().contains("?cert=FILE&key=FILE"), "{error}");
    let own = authority.sign("client", &["tenure"]);
    let settings = format!("{}&cert={}&key={}", ca(&authority), own.cert.display(), own.key.display());
    assert_lease_works(&server.tls_url("localhost", &settings)).await;
    let half = format!("{}&cert={}", ca(&authority), own.cert.display());
    let error = connect_error(&server.tls_url("localhost", &half)).await;
    assert!(error.kind() == ErrorKind::Address && error.to_string().contains("`key`"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_brings_its_own_roots_and_its_own_credentials() {
    let authority = CertificateAuthority::new();
    let server = RedisServer::builder()
        .tls(authority.sign("server", &SERVER_NAMES), &authority)
        .password("rotated-today")
        .start();
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(authority.file()).unwrap();
    roots.add(rustls::pki_types::pem::PemObject::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let url = server.tls_url("localhost", "");
    let store = RedisStore::open(&url, &Keyspace::default()).unwrap().tls_config(config).unwrap();
    let store = store.credentials(|| async { Ok(Credentials::password("rotated-today")) });
    let tenure = Tenure::with_store(Arc::new(store)).bootstrap().connect().await.unwrap();
    assert!(tenure.lease("job").acquire().await.is_ok());
    tenure.shutdown().await;
}
