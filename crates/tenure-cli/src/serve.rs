//! `tenure serve`: one instance of the polling service.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::Tenure;
use tenure::pool::PoolBuilder;
use tenure::store::StoreError;
use tenure_serve::keeping::Defaults;
use tenure_serve::poll::safety::Allowed;
use tenure_serve::{ApiToken, ServeError, Settings};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::{Serve, StoreArguments};
use crate::duration::shown;
use crate::exit::{DONE, Failure};
use crate::notice::{self, note, warning};

/// The part of the drain time-out in which sessions are given away. The rest is for letting go of what nobody took.
const GIVING_AWAY: f64 = 0.8;

/// How long after the end of a dead instance's lease another holds it, in 99 of 100 cases: `docs/benchmarks.md`.
const TAKEOVER_LATENESS: Duration = Duration::from_millis(50);

pub async fn serve(store: &StoreArguments, serve: Serve) -> Result<u8, Failure> {
    let is_near = serve.listen.ip().is_loopback();
    let token = token(&serve)?;
    if !is_near && token.is_none() && !serve.insecure {
        let message = format!(
            "whoever reaches {} could use the API; give a token with --api-token-file, or say --insecure",
            serve.listen
        );
        return Err(Failure::Usage(message));
    }
    // With a token the API is meant for others, too: a proxy on this host may forward them to it.
    let only_this_host = is_near && token.is_none();
    let settings = Settings {
        token,
        allowed: Allowed { near: only_this_host, nets: serve.allow_targets.clone() },
        discover_every: serve.discover_every,
        ttl: serve.ttl,
        stall_after: serve.stall_after,
        keys: store.keys(),
        results: Defaults { max_body: serve.max_body, keep_results: serve.keep_results, backoff: serve.backoff },
    };
    let wrong = |error: ServeError| Failure::Usage(error.to_string());
    tenure_serve::check(|pool| sized(pool, &serve), &settings).map_err(wrong)?;
    take_all_files();
    // Also when the store is down: it is waited for.
    let builder = store.builder(serve.name.as_deref())?.longest_ttl(serve.ttl).share_events();
    let taken = |error: std::io::Error| {
        Failure::Listen(format!("cannot listen on {}: {error}; choose another address with --listen", serve.listen))
    };
    let listener = TcpListener::bind(serve.listen).await.map_err(taken)?;
    let address = listener.local_addr().map_err(taken)?;
    let tenure = builder.start()?;
    notice::set_instance(tenure.instance());
    let told_to_stop = signals()?;
    let running = tenure_serve::start(&tenure, |pool| sized(pool, &serve), settings, listener).map_err(wrong)?;
    let about = format!(
        "{} on {}, API at http://{address}; after a crash a session has another holder within {} + {} ms (99 of 100), after a clean stop at once",
        tenure.instance(),
        tenure.location(),
        shown(serve.ttl),
        TAKEOVER_LATENESS.as_millis(),
    );
    tokio::select! {
        () = told_to_stop => note!("{} is leaving; a second signal ends it at once", tenure.instance()),
        error = present(&tenure, store, &about) => return Err(error.into()),
    }
    let leave = async {
        running.stop().await;
        tenure.shutdown().await;
    };
    // Whatever could not be let go of within the time runs out by itself.
    let _ = tokio::time::timeout(serve.drain_timeout, leave).await;
    note!("{} has left", tenure.instance());
    Ok(DONE)
}

/// The pool, with the numbers that were given.
fn sized(mut pool: PoolBuilder, serve: &Serve) -> PoolBuilder {
    pool = pool
        .ttl(serve.ttl)
        .weight(serve.weight)
        .hand_back(serve.hand_back)
        .drain_timeout(serve.drain_timeout.mul_f64(GIVING_AWAY));
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

/// Says that this instance is there and how it stands with the store. Ends only when there is no use in waiting for that.
async fn present(tenure: &Tenure, store: &StoreArguments, about: &str) -> StoreError {
    match tenure.first_contact().await {
        Ok(()) => {
            let quarantine = tenure.inspect_namespace().await.ok().and_then(|report| report.quarantine);
            let quarantine = quarantine.map_or_else(String::new, |quarantine| format!("; {quarantine}"));
            note!("{about}{quarantine}");
        }
        Err(error) if error.is_retryable() => note!("{about}; the store is waited for: {error}"),
        Err(error) => return error,
    }
    warn_of_settings(store).await;
    std::future::pending().await
}

/// Says what a person should know about how the store is set up.
async fn warn_of_settings(store: &StoreArguments) {
    let Ok(store) = store.open() else { return };
    for text in store.warnings().await {
        warning!("{}: {text}", store.location());
    }
}

/// Every poll and every reader is an open file, and what is usual is little. More than is allowed there are not.
fn take_all_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn token(serve: &Serve) -> Result<Option<ApiToken>, Failure> {
    let Some(file) = &serve.api_token_file else { return Ok(None) };
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::Usage(format!("the token cannot be read from {}: {error}", file.display())))?;
    match ApiToken::read(&text) {
        Some(token) => Ok(Some(token)),
        None => Err(Failure::Usage(format!("there is no token in {}", file.display()))),
    }
}

/// Ends with the first signal to stop. The second ends the process.
fn signals() -> Result<impl Future<Output = ()>, Failure> {
    let failed = "cannot hear signals";
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::system(failed))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::system(failed))?;
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
            std::process::exit(128 + signal.as_raw_value());
        });
    })
}
