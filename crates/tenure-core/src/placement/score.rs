//! Rendezvous scores: which instance ranks highest for a target.
//!
//! The hash is XXH3, which is specified, so that scores are the same on every platform and in every release, and other
//! programs can compute them, too. Instance and target are hashed separately, which distinguishes `("a", "bc")` from
//! `("ab", "c")`. A finaliser in which every bit of either matters mixes them: names that differ only in their last
//! character are as far apart as any.

use xxhash_rust::xxh3::xxh3_64;

use crate::name::InstanceId;

/// An instance, hashed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceScore(u64);

impl InstanceScore {
    /// Hashes an instance.
    pub fn of(instance: &InstanceId) -> Self {
        Self(mix(xxh3_64(instance.as_str().as_bytes())))
    }

    /// The score of this instance for a target.
    pub fn with(self, target: TargetScore) -> u64 {
        mix(self.0 ^ target.0)
    }
}

/// A target, hashed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetScore(u64);

impl TargetScore {
    /// Hashes a target.
    pub fn of(target: &str) -> Self {
        Self(xxh3_64(target.as_bytes()))
    }
}

impl TargetScore {
    /// A number below `limit` that depends on the target alone.
    pub fn spread(self, limit: u64) -> u64 {
        // The upper half of a product of 128 bits: even, and without a division.
        ((u128::from(mix(self.0)) * u128::from(limit)) >> 64) as u64
    }
}

/// The score of an instance for a target: the highest score ranks first.
///
/// ```
/// use tenure::InstanceId;
/// use tenure_core::placement::score;
///
/// let (one, two) = (InstanceId::new("api-1")?, InstanceId::new("api-2")?);
/// assert_ne!(score(&one, "eu-1") > score(&two, "eu-1"), score(&one, "us-2") > score(&two, "us-2"));
/// # Ok::<(), tenure::NameError>(())
/// ```
pub fn score(instance: &InstanceId, target: &str) -> u64 {
    InstanceScore::of(instance).with(TargetScore::of(target))
}

/// The finaliser of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> InstanceId {
        InstanceId::new(text).unwrap()
    }

    /// All versions and platforms must agree, because fleets are upgraded one instance at a time.
    #[test]
    fn scores_never_change() {
        let vectors = include_str!("score_vectors.txt");
        let mut count = 0;
        for line in vectors.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let (instance, target, expected) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            assert_eq!(format!("{:016x}", score(&id(instance), target)), expected, "{line}");
            count += 1;
        }
        assert!(count >= 8);
    }

    #[test]
    fn similar_names_are_spread_evenly() {
        let instances: Vec<InstanceScore> = (1..=10).map(|n| InstanceScore::of(&id(&format!("api-{n}")))).collect();
        let uuid = |n: usize| format!("5f0f2e4a-8d0c-4b9e-9c57-1b6f1f6e{n:04x}");
        let styles: [&dyn Fn(usize) -> String; 3] =
            [&|n| format!("endpoint-{n}"), &uuid, &|n| format!("10.0.{}.{}:9100", n / 250, n % 250)];
        for style in styles {
            let mut counts = [0_u32; 10];
            for n in 0..10_000 {
                let target = TargetScore::of(&style(n));
                let best = (0..10).max_by_key(|at| instances[*at].with(target)).unwrap();
                counts[best] += 1;
            }
            // A thousand each, give or take four standard deviations.
            assert!(counts.iter().all(|count| (880..=1_120).contains(count)), "{}: {counts:?}", style(1));
        }
    }

    #[test]
    fn instance_and_target_are_hashed_separately() {
        assert_ne!(score(&id("a"), "bc"), score(&id("ab"), "c"));
        assert_ne!(score(&id("a"), "b"), score(&id("b"), "a"));
    }
}
