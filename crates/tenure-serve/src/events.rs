//! The events of the service, beside those of leases and elections.

use tenure::{EventKind, Level, ProgramEvent};

/// An event of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServeEvent {
    /// A poll began.
    PollStarted,
    /// A poll ended.
    PollFinished {
        /// The error, if the poll failed.
        error: Option<String>,
    },
    /// A session cannot be polled. Emitted once.
    SessionUnreadable {
        /// The id of the session.
        id: String,
        /// The cause.
        error: String,
    },
    /// This instance is short of a resource, file descriptors for example, and does not do all of its work.
    InstanceStrained {
        /// Which resource, and why.
        error: String,
    },
    /// This instance cannot work at present and hands its leases over to instances that can.
    InstanceUnable {
        /// The cause.
        error: String,
    },
    /// This instance can work again.
    InstanceAble,
}

impl ServeEvent {
    fn name(&self) -> &'static str {
        match self {
            Self::PollStarted => "poll.started",
            Self::PollFinished { .. } => "poll.finished",
            Self::SessionUnreadable { .. } => "session.unreadable",
            Self::InstanceStrained { .. } => "instance.strained",
            Self::InstanceUnable { .. } => "instance.unable",
            Self::InstanceAble => "instance.able",
        }
    }

    fn level(&self) -> Level {
        match self {
            Self::PollStarted | Self::PollFinished { .. } => Level::Debug,
            Self::InstanceAble => Level::Info,
            Self::SessionUnreadable { .. } | Self::InstanceStrained { .. } | Self::InstanceUnable { .. } => Level::Warn,
        }
    }
}

impl From<ServeEvent> for EventKind {
    fn from(event: ServeEvent) -> Self {
        let (name, level) = (event.name(), event.level());
        let fields = match event {
            ServeEvent::PollStarted | ServeEvent::PollFinished { error: None } | ServeEvent::InstanceAble => Vec::new(),
            ServeEvent::PollFinished { error: Some(error) }
            | ServeEvent::InstanceStrained { error }
            | ServeEvent::InstanceUnable { error } => vec![("error", error)],
            ServeEvent::SessionUnreadable { id, error } => vec![("endpoint_id", id), ("error", error)],
        };
        ProgramEvent { name, level, is_routine: level == Level::Debug, fields }.into()
    }
}
