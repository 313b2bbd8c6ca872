//! The last term of each name in this process, for as long as the store may list it as ours. The next claim names it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::name::LeaseName;
use crate::time::Moment;
use crate::token::Token;

/// Number of remembered terms from which old ones are swept.
const MIN_SWEEP_LEN: usize = 1_024;

#[derive(Debug)]
pub(super) struct EndedTerms {
    terms: BTreeMap<LeaseName, (Token, Moment)>,
    sweep_at: usize,
}

impl EndedTerms {
    pub(super) fn new() -> Self {
        Self { terms: BTreeMap::new(), sweep_at: MIN_SWEEP_LEN }
    }

    pub(super) fn remember(&mut self, now: Moment, name: &LeaseName, token: Token, ttl: Duration) {
        if self.terms.len() >= self.sweep_at {
            self.terms.retain(|_, (_, until)| *until > now);
            // Sweep again only at twice the number, so that the cost per term stays low.
            self.sweep_at = MIN_SWEEP_LEN.max(self.terms.len() * 2);
        }
        // By then the store can no longer list it.
        self.terms.insert(name.clone(), (token, now + ttl + ttl));
    }

    pub(super) fn take(&mut self, name: &LeaseName) -> Option<Token> {
        self.terms.remove(name).map(|(token, _)| token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_terms_are_forgotten_after_two_ttls() {
        let mut ended_terms = EndedTerms::new();
        let (ttl, mut now) = (Duration::from_secs(1), Moment::ZERO);
        let name = |number: usize| LeaseName::lease(&format!("job-{number}")).unwrap();
        let token = Token::new(7).unwrap();
        for number in 0..100_000 {
            // A thousand per second, each remembered for two seconds.
            now = now + Duration::from_millis(1);
            ended_terms.remember(now, &name(number), token, ttl);
            assert!(ended_terms.terms.len() <= 8_192, "{} after {number}", ended_terms.terms.len());
        }
        assert_eq!(ended_terms.take(&name(99_999)), Some(token));
        assert_eq!(ended_terms.take(&name(99_999)), None);
        assert_eq!(ended_terms.take(&name(0)), None);
    }
}
