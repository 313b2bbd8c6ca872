//! Events in logs.
//!
//! With the feature `tracing`, every event of a [`Tenure`](crate::Tenure) is a `tracing` event with the target
//! `tenure`, whatever subscriber a program uses. The feature `log` adds `EventLayer`, which writes them as lines of
//! text or JSON, with the field order and names that `tenure` itself uses.
//!
//! ```
//! # #[cfg(feature = "log")] {
//! use tenure::log::{EventLayer, Format};
//! use tracing_subscriber::Layer;
//! use tracing_subscriber::filter::LevelFilter;
//! use tracing_subscriber::layer::SubscriberExt;
//! use tracing_subscriber::util::SubscriberInitExt;
//!
//! let changes = EventLayer::new(Format::Text, std::io::stderr()).with_filter(LevelFilter::INFO); // no renewals
//! tracing_subscriber::registry().with(changes).init();
//! # }
//! ```

#[cfg(feature = "log")]
mod layer;

#[cfg(feature = "log")]
pub use layer::{EventLayer, Format};

use crate::event::{Event, Level};

/// Emits an event as a `tracing` event. Fields that do not apply are omitted.
///
/// ```
/// use tenure::Tenure;
///
/// # #[cfg(feature = "memory")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::builder("memory:")
///     .unlogged()
///     .on_event(|event| {
///         if !event.kind.is_routine() {
///             tenure::log::emit(event); // the log leaves out renewals and polls
///         }
///     })
///     .connect()
///     .await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn emit(event: &Event) {
    let wanted = match event.kind.level() {
        Level::Debug => tracing::event_enabled!(target: "tenure", tracing::Level::DEBUG),
        Level::Info => tracing::event_enabled!(target: "tenure", tracing::Level::INFO),
        Level::Warn => tracing::event_enabled!(target: "tenure", tracing::Level::WARN),
    };
    if !wanted {
        return;
    }
    let fields = event.fields();
    let text = |name: &str| fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    let number = |name: &str| text(name).and_then(|value| value.parse::<u64>().ok());
    macro_rules! emit {
        ($level:ident) => {
            tracing::$level!(
                target: "tenure",
                event = event.kind.name(),
                instance_id = text("instance_id"),
                endpoint_id = text("endpoint_id"),
                role = text("role"),
                lease = text("lease"),
                token = number("token"),
                ttl_ms = number("ttl_ms"),
                count = number("count"),
                remaining_ms = number("remaining_ms"),
                from = text("from"),
                to = text("to"),
                reason = text("reason"),
                owner = text("owner"),
                error = text("error"),
            )
        };
    }
    match event.kind.level() {
        Level::Debug => emit!(debug),
        Level::Info => emit!(info),
        Level::Warn => emit!(warn),
    }
}
