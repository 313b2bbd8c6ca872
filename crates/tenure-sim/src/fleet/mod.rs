//! Whole fleets: many instances of a pool around one store, with joins, leaves, crashes, partitions,
//! outages, wedged instances, lost announcements and changing targets.

mod instance;
pub mod storm;
pub mod world;
