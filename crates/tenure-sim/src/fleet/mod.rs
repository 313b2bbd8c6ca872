//! Whole fleets: the engines of many instances of a pool around one store, with joins, leaves, crashes, partitions,
//! outages, wedged instances, lost announcements and changing targets.

pub mod storm;
pub mod world;
