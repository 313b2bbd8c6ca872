//! `docs/events.md` has every event and every reason.

use tenure_core::ending::Ending;
use tenure_core::store::QuarantineReason;

const REFERENCE: &str = include_str!("../../../docs/events.md");
const EVENTS: &str = concat!(include_str!("../src/event.rs"), include_str!("../../tenure-serve/src/events.rs"));
const ENDINGS: &str = include_str!("../src/ending.rs");
const NAMESPACE: &str = include_str!("../src/store/namespace.rs");

/// The words that the code maps names to, as in `Self::Acquired { .. } => "lease.acquired",`.
fn words(code: &str) -> Vec<&str> {
    let arms = code.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once("=> \""));
    arms.filter_map(|(_, word)| word.strip_suffix("\",")).collect()
}

#[test]
fn the_reference_has_every_event_and_every_reason() {
    let events: Vec<&str> = words(EVENTS).into_iter().filter(|word| word.contains('.')).collect();
    let is_reason = |word: &&str| {
        let is_ending = |text: String| Ending::decode(&text).is_some();
        is_ending(format!("lost {word}"))
            || is_ending(format!("lost {word} api-1"))
            || is_ending(format!("released {word}"))
            || QuarantineReason::from_word(word).is_some()
    };
    let reasons: Vec<&str> = [ENDINGS, NAMESPACE].into_iter().flat_map(words).filter(is_reason).collect();
    assert!(events.len() > 25 && reasons.len() > 20, "{events:?} {reasons:?}");
    for word in events.into_iter().chain(reasons) {
        assert!(REFERENCE.contains(&format!("`{word}`")), "docs/events.md lacks `{word}`");
    }
}
