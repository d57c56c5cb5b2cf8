//! The connections under the turns: one way to make them, whoever uses them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use super::names;

/// How long an idle connection is kept. SGLang closes it after 5 s: never be the one that finds out.
pub(super) const IDLE: Duration = Duration::from_secs(4);

/// Whose TLS certificates are believed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Those that this host's store vouches for.
    #[default]
    Host,
    /// Those that one of the certificates in this PEM file has signed, or that are one of them.
    File(PathBuf),
    /// Anyone's.
    Anyone,
}

/// A client that cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("header `{name}`: not a name and value that HTTP allows")]
    Header { name: String },
    #[error("{path}: no certificates: {why}", path = path.display())]
    Certificates { path: PathBuf, why: String },
    #[error("the HTTP client cannot start: {0}")]
    Build(#[from] reqwest::Error),
}

/// The headers of every request of a run, on whatever route. A profile that names its own authorization means it, so it
/// beats `api_key`, which comes from the environment.
///
/// # Errors
/// When a header is malformed.
pub fn common_headers(profile: &BTreeMap<String, String>, api_key: Option<&str>) -> Result<HeaderMap, ClientError> {
    let mut headers = HeaderMap::new();
    // A compressor would hold tokens back.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(key) = api_key {
        let wrong = |_| ClientError::Header { name: "authorization".into() };
        let mut bearer = HeaderValue::try_from(format!("Bearer {key}")).map_err(wrong)?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    for (name, value) in profile {
        let wrong = || ClientError::Header { name: name.clone() };
        let mut value: HeaderValue = value.parse().map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.insert(name.parse::<HeaderName>().map_err(|_| wrong())?, value);
    }
    Ok(headers)
}

/// The pool and transport that every room uses: no proxy, no redirect, no retry, HTTP/1.1, no total timeout.
///
/// # Errors
/// When TLS cannot be set up.
pub fn transport(
    connect_timeout: Duration,
    url: &str,
    trust: &Trust,
    headers: HeaderMap,
) -> Result<reqwest::Client, ClientError> {
    Ok(builder(connect_timeout, url, trust)?.default_headers(headers).build()?)
}

pub(super) fn builder(
    connect_timeout: Duration,
    url: &str,
    trust: &Trust,
) -> Result<reqwest::ClientBuilder, ClientError> {
    let builder = reqwest::Client::builder()
        .no_proxy()
        .http1_only()
        .retry(reqwest::retry::never())
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
        .dns_resolver(Arc::new(names::Once))
        .connect_timeout(connect_timeout)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(usize::MAX);
    if !url.starts_with("https://") {
        // Without TLS no CA bundle is needed, and a host that has none must not fail.
        return Ok(builder.tls_certs_only([]));
    }
    Ok(match trust {
        Trust::Host => builder,
        Trust::Anyone => builder.tls_certs_only([]).tls_danger_accept_invalid_certs(true),
        Trust::File(path) => builder.tls_certs_only(certificates(path)?),
    })
}

fn certificates(path: &Path) -> Result<Vec<reqwest::Certificate>, ClientError> {
    let wrong = |why: String| ClientError::Certificates { path: path.to_owned(), why };
    let pem = std::fs::read(path).map_err(|why| wrong(why.to_string()))?;
    let found = reqwest::Certificate::from_pem_bundle(&pem).map_err(|why| wrong(why.to_string()))?;
    if found.is_empty() { Err(wrong("the file holds none in PEM form".to_owned())) } else { Ok(found) }
}
