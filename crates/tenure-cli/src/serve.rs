//! `tenure serve`: one instance of the polling service.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::Tenure;
use tenure::pool::PoolBuilder;
use tenure::store::StoreError;
use tenure_serve::poll::address_policy::AddressPolicy;
use tenure_serve::result_settings::ResultSettings;
use tenure_serve::{ApiToken, ServeError, ServiceSettings};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::{ServeArguments, StoreArguments};
use crate::duration::format_duration;
use crate::exit::{CliError, DONE};
use crate::notice::{self, note, warning};
use crate::stderr;

/// Part of the drain timeout for handing over sessions. The rest is for releasing those that no instance accepted.
const HANDOVER_PART_OF_DRAIN: f64 = 0.8;

/// Time from the expiry of a dead instance's lease to the next grant, in 99 of 100 cases: `docs/benchmarks.md`.
const TAKEOVER_LATENESS: Duration = Duration::from_millis(50);

pub async fn serve(store: &StoreArguments, serve: ServeArguments) -> Result<u8, CliError> {
    let is_loopback = serve.listen.ip().is_loopback();
    let token = read_token(&serve)?;
    if !is_loopback && token.is_none() && !serve.insecure {
        let message = format!(
            "cannot listen on {} without a token: every client that reaches it could use the API; set --api-token-file, or pass --insecure",
            serve.listen
        );
        return Err(CliError::Usage(message));
    }
    // With a token the API is meant for other hosts, too: a proxy on this host may forward their requests.
    let only_this_host = is_loopback && token.is_none();
    let settings = ServiceSettings {
        token,
        address_policy: AddressPolicy { allow_private: only_this_host, allowed_nets: serve.allow_targets.clone() },
        discover_every: serve.discover_every,
        ttl: serve.ttl,
        stall_after: serve.stall_after,
        keys: store.keys(),
        results: ResultSettings { max_body: serve.max_body, keep_results: serve.keep_results, backoff: serve.backoff },
    };
    let not_started = |error: ServeError| match error {
        ServeError::Store(error) => CliError::from(error),
        error => CliError::Usage(error.to_string()),
    };
    raise_file_limit();
    tenure_serve::check(|pool| configure_pool(pool, &serve), &settings).map_err(not_started)?;
    // The service also starts while the store is down, and waits for it.
    let builder = store.builder(serve.name.as_deref())?.longest_ttl(serve.ttl).share_events();
    let taken = |error: std::io::Error| {
        CliError::Listen(format!("cannot listen on {}: {error}; choose another address with --listen", serve.listen))
    };
    let listener = TcpListener::bind(serve.listen).await.map_err(taken)?;
    let address = listener.local_addr().map_err(taken)?;
    let tenure = builder.start()?;
    notice::set_instance(tenure.instance());
    let stop_requested = stop_signal()?;
    let running =
        tenure_serve::start(&tenure, |pool| configure_pool(pool, &serve), settings, listener).map_err(not_started)?;
    let about = format!(
        "{} on {}, API at http://{address}; after a crash a session has another holder within {} + {} ms (99 of 100), after a clean stop at once",
        tenure.instance(),
        tenure.location(),
        format_duration(serve.ttl),
        TAKEOVER_LATENESS.as_millis(),
    );
    tokio::select! {
        () = stop_requested => note!("{} is leaving; a second signal ends it at once", tenure.instance()),
        error = report_startup(&tenure, store, &about) => return Err(error.into()),
    }
    let leave = async {
        running.stop().await;
        tenure.shutdown().await;
    };
    // Leases not released within the timeout expire.
    let _ = tokio::time::timeout(serve.drain_timeout, leave).await;
    note!("{} has left", tenure.instance());
    Ok(DONE)
}

/// Applies the flags to the pool.
fn configure_pool(mut pool: PoolBuilder, serve: &ServeArguments) -> PoolBuilder {
    pool = pool
        .ttl(serve.ttl)
        .weight(serve.weight)
        .hand_back(serve.hand_back)
        .drain_timeout(serve.drain_timeout.mul_f64(HANDOVER_PART_OF_DRAIN));
    if let Some(every) = serve.renew_every {
        pool = pool.renew_every(every);
    }
    if let Some(ttl) = serve.heartbeat_ttl {
        pool = pool.heartbeat_ttl(ttl);
    }
    if let Some(every) = serve.heartbeat_every {
        pool = pool.heartbeat_every(every);
    }
    if let Some(window) = serve.settle {
        pool = pool.settle(window);
    }
    pool
}

/// Reports the start of this instance and the state of the store. Returns only on an error that a retry cannot resolve.
async fn report_startup(tenure: &Tenure, store: &StoreArguments, about: &str) -> StoreError {
    match tenure.ready().await {
        Ok(()) => {
            let quarantine = tenure.admin().namespace().await.ok().and_then(|report| report.quarantine);
            let quarantine = quarantine.map_or_else(String::new, |quarantine| format!("; {quarantine}"));
            note!("{about}{quarantine}");
        }
        Err(error) if error.is_retryable() => note!("{about}; waiting for the store: {error}"),
        Err(error) => return error,
    }
    warn_about_settings(store).await;
    std::future::pending().await
}

/// Prints warnings about the configuration of the store.
async fn warn_about_settings(store: &StoreArguments) {
    let Ok(store) = store.open() else { return };
    for text in store.warnings().await {
        warning!("{}: {text}", store.location());
    }
}

/// Raises the limit of open files to its maximum. Every poll and every API client needs one, and the default is low.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn read_token(serve: &ServeArguments) -> Result<Option<ApiToken>, CliError> {
    let Some(file) = &serve.api_token_file else { return Ok(None) };
    let text = std::fs::read_to_string(file)
        .map_err(|error| CliError::Usage(format!("cannot read the token from {}: {error}", file.display())))?;
    match ApiToken::read(&text) {
        Ok(token) => Ok(Some(token)),
        Err(why) => Err(CliError::Usage(format!("cannot read the token from {}: {why}", file.display()))),
    }
}

/// Returns a future that completes with the first signal to stop. The second signal ends the process.
fn stop_signal() -> Result<impl Future<Output = ()>, CliError> {
    let failed = "cannot listen for signals";
    let mut terminate = signal(SignalKind::terminate()).map_err(CliError::system(failed))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::system(failed))?;
    Ok(async move {
        let next = async move |terminate: &mut tokio::signal::unix::Signal,
                               interrupt: &mut tokio::signal::unix::Signal| {
            tokio::select! {
                _ = terminate.recv() => SignalKind::terminate(),
                _ = interrupt.recv() => SignalKind::interrupt(),
            }
        };
        next(&mut terminate, &mut interrupt).await;
        tokio::spawn(async move {
            let signal = next(&mut terminate, &mut interrupt).await;
            stderr::exit(128 + signal.as_raw_value());
        });
    })
}
