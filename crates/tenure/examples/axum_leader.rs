//! A web service in several replicas, of which one at a time cleans up.
//!
//! ```sh
//! cargo run -p tenure --example axum_leader -- 127.0.0.1:8081
//! cargo run -p tenure --example axum_leader -- 127.0.0.1:8082     # in a second terminal
//! curl 127.0.0.1:8082                                   # who leads
//! ```

use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tenure::{Tenure, Token};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

const ROLE: &str = "cleanup";
const TTL: Duration = Duration::from_secs(3);
const CLEAN_UP_EVERY: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init(); // shows the events of Tenure, too
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let store = std::env::var("TENURE_STORE").unwrap_or_else(|_| "redis://localhost".to_owned());
    let listener = TcpListener::bind(&address).await.with_context(|| format!("cannot listen on {address:?}"))?;
    let tenure = Tenure::connect(&store).await.context("cannot connect to the store")?;

    let shutdown = CancellationToken::new();
    let stopping = async {
        wait_for_signal().await.context("cannot wait for a signal")?;
        shutdown.cancel();
        Ok(())
    };
    let app = Router::new().route("/", get(show_leader)).with_state(tenure.clone());
    let serving = async {
        let server = axum::serve(listener, app).with_graceful_shutdown(shutdown.clone().cancelled_owned());
        server.await.context("cannot serve")
    };
    let leading = async {
        let election = tenure.election(ROLE).ttl(TTL).metadata(&address);
        let lead = election.lead(async |term| {
            while term.wait(CLEAN_UP_EVERY).await {
                if let Err(error) = clean_up(term.token()).await {
                    tracing::warn!("cannot clean up: {error:#}; stepping down");
                    break;
                }
            }
            Ok(()) // resigns, unless the term is over anyway
        });
        lead.until(shutdown.cancelled()).await.context("cannot campaign")
    };

    // A signal ends all three. When one of them fails, the others are dropped.
    let outcome = tokio::try_join!(stopping, serving, leading);
    tenure.shutdown().await; // waits until the lease is released, whichever way it came here
    outcome.map(|_| ())
}

/// Deletes what is out of date. A real one passes the token with every write.
async fn clean_up(token: Token) -> anyhow::Result<()> {
    tracing::info!(%token, "cleaning up");
    Ok(())
}

async fn show_leader(State(tenure): State<Tenure>) -> Result<String, (StatusCode, String)> {
    let leader = tenure.fleet().leader_of(ROLE).await;
    let leader = leader.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, format!("leader not known: {error}\n")))?;
    Ok(match leader {
        Some(leader) if leader.instance == *tenure.instance() => "this replica leads\n".to_owned(),
        Some(leader) => {
            let address = leader.metadata.as_deref().unwrap_or("an unknown address");
            format!("this replica follows; {} at {address} leads\n", leader.instance)
        }
        None => "no replica leads\n".to_owned(),
    })
}

async fn wait_for_signal() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result,
        _ = terminate.recv() => Ok(()),
    }
}
