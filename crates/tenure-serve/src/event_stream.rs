//! Events of the whole fleet, for streams.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value};
use tenure::Tenure;
use tenure::fleet::FleetEvent;
use tenure::store::{Announcement, SubscriptionItem};
use tokio::sync::broadcast;

use crate::counters::Counters;

/// Number of events that a slow client may fall behind before it misses some.
const MAX_BUFFERED_EVENTS: usize = 1_024;

/// An event for clients.
#[derive(Debug)]
pub(crate) struct StreamedEvent {
    /// Event name, such as `lease.acquired`.
    pub(crate) name: String,
    /// The whole event as a line of JSON.
    pub(crate) line: String,
}

/// All events of the fleet.
#[derive(Clone, Debug)]
pub(crate) struct FleetEvents(broadcast::Sender<Arc<StreamedEvent>>);

impl FleetEvents {
    /// Listens to the events of this instance, which it also counts, and to those that other instances announce.
    pub(crate) fn listen(tenure: &Tenure, counters: Arc<Counters>) -> Self {
        let (sender, _) = broadcast::channel(MAX_BUFFERED_EVENTS);
        let (mut ours, mut theirs, me) =
            (tenure.events().notable(), tenure.fleet().announcements(), tenure.instance().clone());
        let publish = sender.clone();
        tokio::spawn(async move {
            loop {
                let event = tokio::select! {
                    event = ours.next() => {
                        let Some(event) = event else { return };
                        counters.record_event(&event);
                        Some(FleetEvent::of(&event, SystemTime::now()))
                    }
                    heard = theirs.next() => match heard {
                        SubscriptionItem::Announced(Announcement::Event { event }) => {
                            FleetEvent::decode(&event).filter(|event| event.instance().as_ref() != Some(&me))
                        }
                        SubscriptionItem::Closed => return,
                        _ => None,
                    },
                };
                if let Some(event) = event.filter(|_| publish.receiver_count() > 0) {
                    let _ = publish.send(Arc::new(StreamedEvent { line: to_json_line(&event), name: event.name }));
                }
            }
        });
        Self(sender)
    }

    /// Subscribes to all events from now on.
    pub(crate) fn follow(&self) -> broadcast::Receiver<Arc<StreamedEvent>> {
        self.0.subscribe()
    }
}

/// Formats an event as a line of JSON, with the fields of a log line.
pub fn to_json_line(event: &FleetEvent) -> String {
    let mut object = Map::new();
    let at = humantime::format_rfc3339_micros(event.at).to_string();
    for (name, value) in [("timestamp", at), ("level", event.level.clone()), ("event", event.name.clone())] {
        object.insert(name.to_owned(), value.into());
    }
    for (name, value) in &event.fields {
        let is_number = matches!(name.as_str(), "token" | "ttl_ms");
        let number = value.parse::<u64>().ok().filter(|_| is_number).map(Value::from);
        object.insert(name.clone(), number.unwrap_or_else(|| value.as_str().into()));
    }
    Value::Object(object).to_string()
}
