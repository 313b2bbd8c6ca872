//! A simulated world around the same decisions that run in a program: clocks that drift, jump and freeze; a network that
//! delays, swallows, holds back and doubles packets; a store that stalls, restarts and forgets; processes that crash and
//! are stopped. One seed decides everything.
//!
//! Each world has a storm, in which the [invariants] are checked after every step, then a calm, in which
//! everything must come right within a bound, then a crash in the calm, after which the others must take over. Faults
//! outside the promise are measured and not judged ([`promise`]).

pub mod campaign;
pub mod candidate;
pub mod clock;
pub mod faults;
pub mod fleet;
pub mod invariants;
pub mod mutation;
pub mod names;
pub mod network;
pub mod observation;
pub mod process;
pub mod promise;
pub mod server;
pub mod timeline;
pub mod validity;
pub mod work;
pub mod world;
