//! The scripts, in the form that is sent to the server.

/// Prepended to every script.
const PRELUDE: &str = include_str!("scripts/prelude.lua");

macro_rules! scripts {
    ($($script:ident => $file:literal,)*) => {
        /// One script.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Script {
            $(
                #[doc = concat!("`scripts/", $file, ".lua`")]
                $script,
            )*
        }

        impl Script {
            /// Every script, in the order of their numbers.
            pub(super) const ALL: &[Self] = &[$(Self::$script),*];

            fn body(self) -> &'static str {
                match self {
                    $(Self::$script => include_str!(concat!("scripts/", $file, ".lua")),)*
                }
            }
        }
    };
}

impl Script {
    /// The script's text with the prelude, as it is sent: without comments and empty lines.
    pub(super) fn source(self) -> String {
        let lines = self.text();
        let code = lines.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
        code.collect::<Vec<_>>().join("\n")
    }

    fn text(self) -> String {
        match self {
            Self::AcquireWithHeartbeat => with_heartbeat(Self::Acquire),
            Self::RenewWithHeartbeat => with_heartbeat(Self::Renew),
            alone => format!("{PRELUDE}\n{}", alone.body()),
        }
    }
}

/// The script of a request combined with a heartbeat.
fn with_heartbeat(request: Script) -> String {
    let (request, beat) = (request.body(), Script::AcquireWithHeartbeat.body());
    format!("{PRELUDE}\nlocal function handle_request()\n{request}\nend\n{beat}")
}

scripts! {
    Attach => "attach",
    Acquire => "acquire",
    Renew => "renew",
    Release => "release",
    HandOver => "hand_over",
    Revoke => "revoke",
    Ask => "ask",
    Inspect => "inspect",
    InspectNamespace => "inspect_namespace",
    Reopen => "reopen",
    Publish => "publish",
    Append => "append",
    Forget => "forget",
    ReadDocuments => "read_documents",
    WriteDocument => "write_document",
    Heartbeat => "heartbeat",
    Leave => "leave",
    Instances => "instances",
    IndexInstance => "index_instance",
    Index => "index",
    AcquireWithHeartbeat => "with_heartbeat",
    RenewWithHeartbeat => "with_heartbeat",
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shebang would make Redis refuse the whole script when memory is full, and renewals must work then.
    #[test]
    fn no_script_has_a_shebang() {
        for script in Script::ALL {
            assert!(!script.source().starts_with("#!"), "{script:?}");
        }
    }

    /// A server closes the connection of a client that has not logged in when it sends more than this at once, without
    /// naming the missing login.
    #[test]
    fn every_script_fits_the_limit_of_unauthenticated_clients() {
        for script in Script::ALL {
            assert!(script.source().len() < 16_384, "{script:?}: {}", script.source().len());
        }
    }
}
