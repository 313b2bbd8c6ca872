//! The last term that this process had of a name, for as long as the store may list it as ours: the next claim names it.

use std::collections::HashMap;
use std::time::Duration;

use crate::name::LeaseName;
use crate::time::Moment;
use crate::token::Token;

/// How many are remembered before the old ones are looked for.
const AT_FIRST: usize = 1_024;

#[derive(Debug)]
pub(super) struct Spent {
    terms: HashMap<LeaseName, (Token, Moment)>,
    limit: usize,
}

impl Spent {
    pub(super) fn new() -> Self {
        Self { terms: HashMap::new(), limit: AT_FIRST }
    }

    pub(super) fn remember(&mut self, now: Moment, name: &LeaseName, token: Token, ttl: Duration) {
        if self.terms.len() >= self.limit {
            self.terms.retain(|_, (_, until)| *until > now);
            // Looked for again only when there are twice as many, so that looking costs little for each.
            self.limit = AT_FIRST.max(self.terms.len() * 2);
        }
        // By then the store cannot list it any more.
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
    fn they_are_forgotten_when_nobody_can_need_them() {
        let mut spent = Spent::new();
        let (ttl, mut now) = (Duration::from_secs(1), Moment::ZERO);
        let name = |number: usize| LeaseName::lease(&format!("job-{number}")).unwrap();
        let token = Token::new(7).unwrap();
        for number in 0..100_000 {
            // A thousand in a second, each for two.
            now = now + Duration::from_millis(1);
            spent.remember(now, &name(number), token, ttl);
            assert!(spent.terms.len() <= 8_192, "{} after {number}", spent.terms.len());
        }
        assert_eq!(spent.take(&name(99_999)), Some(token));
        assert_eq!(spent.take(&name(99_999)), None);
        assert_eq!(spent.take(&name(0)), None);
    }
}
