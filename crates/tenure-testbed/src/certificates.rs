//! Certificates for tests: an authority and the certificates that it signs.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// A certificate authority with its own folder, whose files exist as long as the value.
#[derive(Debug)]
pub struct CertificateAuthority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl CertificateAuthority {
    /// Creates an authority that is not trusted by anything yet.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("tenure-ca-").tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    /// The file with the authority's own certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Signs a certificate for these names and addresses.
    pub fn sign(&self, file: &str, names: &[&str]) -> Certificate {
        self.write(
            file,
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap(),
        )
    }

    /// Signs a certificate that expired long ago.
    pub fn sign_expired(&self, file: &str, names: &[&str]) -> Certificate {
        let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        self.write(file, params)
    }

    fn write(&self, file: &str, mut params: CertificateParams) -> Certificate {
        params.distinguished_name.push(DnType::CommonName, file);
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| -> PathBuf { Path::new(self.folder.path()).join(format!("{file}.{end}")) };
        let made = Certificate { cert: path("crt"), key: path("key") };
        std::fs::write(&made.cert, signed.pem()).unwrap();
        std::fs::write(&made.key, key.serialize_pem()).unwrap();
        made
    }
}

impl Default for CertificateAuthority {
    fn default() -> Self {
        Self::new()
    }
}
