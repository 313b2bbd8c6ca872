//! The lease machine, one behaviour at a time: what goes in, what comes out, and nothing else.

mod goodbye;
mod properties;
mod pursuit;
mod rig;
mod term;
