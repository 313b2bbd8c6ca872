//! The scripts, as the server sees them.

/// Put before every script.
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
    /// The script's text, with the prelude, as it is sent: without what is only for readers.
    pub(super) fn source(self) -> String {
        let lines = self.text();
        let code = lines.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
        code.collect::<Vec<_>>().join("\n")
    }

    fn text(self) -> String {
        match self {
            Self::AcquireBeating => with_heartbeat(Self::Acquire),
            Self::RenewBeating => with_heartbeat(Self::Renew),
            alone => format!("{PRELUDE}\n{}", alone.body()),
        }
    }
}

/// The script of a question that a heartbeat travels with.
fn with_heartbeat(question: Script) -> String {
    let (question, beat) = (question.body(), Script::AcquireBeating.body());
    format!("{PRELUDE}\nlocal function ask()\n{question}\nend\n{beat}")
}

scripts! {
    Enter => "enter",
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
    WriteSession => "write_session",
    Beat => "beat",
    Leave => "leave",
    Members => "members",
    List => "list",
    Index => "index",
    AcquireBeating => "with_heartbeat",
    RenewBeating => "with_heartbeat",
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

    /// A server closes the connection of a client that has not logged in when it sends more than this at a time, without
    /// saying that it should.
    #[test]
    fn every_script_can_be_told_to_a_server_that_wants_a_password() {
        for script in Script::ALL {
            assert!(script.source().len() < 16_384, "{script:?}: {}", script.source().len());
        }
    }
}
