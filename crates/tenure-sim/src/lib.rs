//! A deterministic simulator that runs the library's own decision code in simulated worlds. Clocks drift, jump and
//! freeze. The network delays, drops, holds back and duplicates packets. The store stalls, restarts and loses data.
//! Processes crash and are stopped. One seed determines a whole world.
//!
//! Each world has three phases: a storm of faults, in which the [invariants] are checked after every step; a calm, in
//! which every lease must recover within a bound; and a crash in the calm, after which another process must take over.
//! The effects of faults outside the promise are measured and not judged ([`promise`]).

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
pub mod reduction;
pub mod server;
pub mod timeline;
mod user;
pub mod validity;
pub mod work;
pub mod world;
