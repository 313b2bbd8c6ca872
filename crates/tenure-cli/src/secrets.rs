//! Hides passwords in error messages of the flag and file parsers, which repeat their input. Pure.

use std::collections::BTreeSet;

use tenure_serve::session::REDACTED;

/// The flag whose arguments are secrets, wherever they end up when quotes are missing.
const HEADER: &str = "--header";

/// Hides what may be a secret in an argument. Keeps only the scheme of a URL and only the host of `user:password@host`.
pub fn hide(word: &str) -> String {
    match (word.split_once("://"), word.rsplit_once('@')) {
        (Some((scheme, _)), _) => format!("{scheme}://{REDACTED}"),
        (None, Some((user, host))) if user.contains(':') => format!("{REDACTED}@{host}"),
        _ => word.to_owned(),
    }
}

/// Hides the secrets of these arguments in a text that may repeat them: alone, as a part of a list, or escaped.
pub fn hide_in(text: &str, words: &[String]) -> String {
    let parts = words.iter().flat_map(|word| word.split(',').chain([word.as_str()]));
    let secrets: BTreeSet<(String, String)> = parts.filter_map(secret).collect();
    let mut secrets: Vec<_> = secrets.into_iter().collect();
    // Longest first: one secret may be a prefix of another.
    secrets.sort_by_key(|(secret, _)| std::cmp::Reverse(secret.len()));
    let hidden = secrets.iter().fold(text.to_owned(), |text, (secret, hidden)| {
        text.replace(secret, hidden).replace(&secret.escape_debug().to_string(), hidden)
    });
    header_words(words).fold(hidden, |text, word| text.replace(&format!("'{word}'"), &format!("'{REDACTED}'")))
}

/// Returns the part of an argument that may be a secret, including its separator, and the replacement for it.
fn secret(word: &str) -> Option<(String, String)> {
    match (word.split_once("://"), word.rsplit_once('@')) {
        (Some((_, rest)), _) if !rest.is_empty() => Some((format!("://{rest}"), format!("://{REDACTED}"))),
        (None, Some((user, _))) if user.contains(':') => {
            let user = user.rsplit_once('=').filter(|_| user.starts_with("--")).map_or(user, |(_, user)| user);
            Some((format!("{user}@"), format!("{REDACTED}@")))
        }
        _ => None,
    }
}

/// Returns the arguments from `--header` to the next flag.
fn header_words(words: &[String]) -> impl Iterator<Item = &str> {
    let mut is_header = false;
    words.iter().filter_map(move |word| {
        if let Some(value) = word.strip_prefix(HEADER) {
            is_header = true;
            return value.strip_prefix('=');
        }
        is_header &= !word.starts_with('-');
        is_header.then_some(word.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_a_secret_is_hidden() {
        for (word, hidden) in [
            ("redis://u:hunter2@h:1/0", "redis://***"),
            ("u:hunter2@h", "***@h"),
            ("--store=redis://hunter2", "--store=redis://***"),
            ("--ttl", "--ttl"),
            ("soon", "soon"),
        ] {
            assert_eq!(hide(word), hidden);
            assert_eq!(
                hide_in(&format!("bad value '{word}', see"), &[word.to_owned()]),
                format!("bad value '{hidden}', see")
            );
        }
    }

    #[test]
    fn secrets_are_found_in_lists_with_escapes_and_without_their_quotes() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, text) in [
            ("--allow-targets 10.0.0.0/8,redis://u:hunter2@h", "invalid value 'redis://u:hunter2@h'"),
            ("--backoff redis://u:\"hunter2\"@h", r#"got "redis://u:\"hunter2\"@h""#),
            ("--json=u:hunter2@h", "unexpected value 'u:hunter2@h'"),
            ("--header X-Key: hunter2 --url x", "unexpected argument 'hunter2' found"),
            ("--header=hunter2", "invalid value 'hunter2'"),
        ] {
            let hidden = hide_in(text, &words(line));
            assert!(!hidden.contains("hunter2") && hidden.contains(REDACTED), "{line}: {hidden}");
        }
    }
}
