//! Names of leases and instances: validated once, cheap to clone.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest label, prefix or instance id, in bytes.
///
/// ```
/// use tenure::{LeaseName, MAX_NAME_LENGTH};
///
/// let path = "exports/".repeat(40);
/// let label = &path[path.len() - MAX_NAME_LENGTH..];
/// assert!(LeaseName::lease(label).is_ok());
/// assert!(LeaseName::lease(&path).is_err());
/// ```
pub const MAX_NAME_LENGTH: usize = 256;

/// The longest prefix of heartbeats. Any key fits into it.
const MAX_GROUP_LENGTH: usize = 3 * MAX_NAME_LENGTH;

/// The prefix of Tenure's internal keys.
const RESERVED_PREFIX: &str = "tenure:";

/// Why a name was not accepted.
///
/// ```
/// use tenure::{LeaseName, NameError};
///
/// match LeaseName::lease("nightly report") {
///     Ok(name) => println!("{}", name.key()),
///     Err(NameError::BadCharacter { character, at, .. }) => assert_eq!((character, at), (' ', 7)),
///     Err(NameError::TooLong { max_length, .. }) => println!("shorten it to {max_length} bytes"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty.
    #[error("a {what} must not be empty")]
    Empty {
        /// The kind of name.
        what: &'static str,
    },
    /// The text is too long.
    #[error("the {what} has {length} bytes; at most {max_length} are allowed")]
    TooLong {
        /// The kind of name.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The largest length allowed.
        max_length: usize,
    },
    /// The text has a character that could be mistaken for structure.
    #[error(
        "the {what} {text:?} has {character:?} at byte {at}; braces, white space and control characters are not allowed"
    )]
    BadCharacter {
        /// The kind of name.
        what: &'static str,
        /// The text.
        text: String,
        /// The offending character.
        character: char,
        /// Its byte offset.
        at: usize,
    },
    /// The key is reserved for Tenure.
    #[error("the key {key:?} is reserved for Tenure; choose a prefix that does not begin with `{RESERVED_PREFIX}`")]
    Reserved {
        /// The key.
        key: String,
    },
    /// A namespace has a word that begins keys, so its keys could be those of another namespace.
    #[error("the namespace {namespace:?} contains the word {word:?}, with which keys begin; choose another name")]
    KeyWord {
        /// The namespace.
        namespace: String,
        /// The word.
        word: String,
    },
    /// The key has no prefix.
    #[error("the key {key:?} has no prefix: write it with a colon, as in `my-app:leader`")]
    NoPrefix {
        /// The key.
        key: String,
    },
    /// Heartbeats under this prefix could overwrite leases.
    #[error(
        "heartbeats cannot use the prefix {prefix:?} of leases; choose another prefix, such as `my-app:heartbeat:`"
    )]
    HeartbeatPrefix {
        /// The prefix.
        prefix: String,
    },
    /// The pool's keys could collide with others.
    #[error("cannot name a pool {pool:?}: its keys could collide with others; do not use `lease`, `leader` or a colon")]
    PoolName {
        /// The name.
        pool: String,
    },
    /// The prefix has braces that are not exactly one `{tag}`.
    #[error("the prefix {prefix:?} may have at most one hash tag, written {{tag}}")]
    BadHashTag {
        /// The prefix.
        prefix: String,
    },
}

/// The purpose of a lease. It decides only how events name the lease.
///
/// ```
/// use tenure::{Event, EventKind, InstanceId, LeaseKind, LeaseName};
///
/// let lease = LeaseName::with_prefix(LeaseKind::Role, "{my-app}:leader:", "cleanup")?;
/// assert_eq!((lease.key(), lease.kind()), ("{my-app}:leader:cleanup", LeaseKind::Role));
/// let (instance, kind) = (InstanceId::new("api-1")?, EventKind::Recovered);
/// let event = Event { instance, lease: Some(lease), token: None, kind };
/// assert!(event.to_string().contains("role=cleanup"));
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseKind {
    /// A plain lease.
    Lease,
    /// The leadership of a role.
    Role,
    /// A target of a pool.
    Target,
}

/// The name of a lease: a kind, and the key it has in the store.
///
/// Two names are equal when their keys are. A label cannot leave its prefix: it has no braces, no white space and no
/// control characters, and every kind has its own prefix.
///
/// ```
/// use tenure::LeaseName;
///
/// assert_eq!(LeaseName::role("cleanup")?.key(), "leader:cleanup");
/// assert_eq!(LeaseName::target("poll", "10.0.0.7:9100")?.key(), "poll:lease:10.0.0.7:9100");
/// let error = LeaseName::lease("nightly}report").unwrap_err();
/// assert!(error.to_string().contains("'}' at byte 7"));
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LeaseName {
    key: Arc<str>,
    label_start: u16,
    kind: LeaseKind,
}

impl LeaseName {
    /// A plain lease: `lease:<label>`.
    ///
    /// # Errors
    /// When the label is empty, too long, or has a character that is not allowed.
    pub fn lease(label: &str) -> Result<Self, NameError> {
        Self::with_prefix(LeaseKind::Lease, "lease:", label)
    }

    /// The leadership of a role: `leader:<label>`.
    ///
    /// # Errors
    /// When the label is empty, too long, or has a character that is not allowed.
    pub fn role(label: &str) -> Result<Self, NameError> {
        Self::with_prefix(LeaseKind::Role, "leader:", label)
    }

    /// A target of a pool: `<pool>:lease:<label>`.
    ///
    /// # Errors
    /// When either is empty, too long, or has a character that is not allowed.
    pub fn target(pool: &str, label: &str) -> Result<Self, NameError> {
        check("pool name", pool)?;
        // These would make keys that plain leases or roles can also have.
        if pool.contains(':') || matches!(pool, "lease" | "leader") {
            return Err(NameError::PoolName { pool: pool.to_owned() });
        }
        Self::with_prefix(LeaseKind::Target, &format!("{pool}:lease:"), label)
    }

    /// A name under a custom prefix, which may contain one hash tag (`{my-app}:leader:`).
    ///
    /// # Errors
    /// When the label or the prefix is not valid.
    pub fn with_prefix(kind: LeaseKind, prefix: &str, label: &str) -> Result<Self, NameError> {
        check_prefix(prefix)?;
        check("lease name", label)?;
        let key: Arc<str> = format!("{prefix}{label}").into();
        // Check the whole key: a prefix and a label together can make a reserved one.
        if key.replace(['{', '}'], "").starts_with(RESERVED_PREFIX) {
            return Err(NameError::Reserved { key: key.to_string() });
        }
        // Both parts are at most MAX_NAME_LENGTH long.
        let label_start = u16::try_from(prefix.len()).unwrap_or(0);
        Ok(Self { key, label_start, kind })
    }

    /// The key in the store, without the namespace.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The name as the caller wrote it.
    pub fn label(&self) -> &str {
        self.key.get(usize::from(self.label_start)..).unwrap_or(&self.key)
    }

    /// The purpose of the lease.
    pub fn kind(&self) -> LeaseKind {
        self.kind
    }

    /// Encodes the whole name as one word, which [`decode`](Self::decode) reads: a letter for the kind, the start of
    /// the label, and the key.
    pub fn encode(&self) -> String {
        let letter = match self.kind {
            LeaseKind::Lease => 'l',
            LeaseKind::Role => 'r',
            LeaseKind::Target => 't',
        };
        format!("{letter}{}:{}", self.label_start, self.key)
    }

    /// Decodes what [`encode`](Self::encode) wrote. `None` for anything else: the text is untrusted.
    pub fn decode(word: &str) -> Option<Self> {
        let (head, key) = word.split_once(':')?;
        let mut head = head.chars();
        let kind = match head.next()? {
            'l' => LeaseKind::Lease,
            'r' => LeaseKind::Role,
            't' => LeaseKind::Target,
            _ => return None,
        };
        let (prefix, label) = key.split_at_checked(head.as_str().parse().ok()?)?;
        Self::with_prefix(kind, prefix, label).ok()
    }
}

impl From<LeaseName> for String {
    fn from(name: LeaseName) -> Self {
        name.encode()
    }
}

impl TryFrom<String> for LeaseName {
    type Error = &'static str;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        Self::decode(&word).ok_or("not the name of a lease")
    }
}

impl PartialEq for LeaseName {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for LeaseName {}

impl PartialOrd for LeaseName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LeaseName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl Hash for LeaseName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

impl fmt::Debug for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseName({})", self.key)
    }
}

/// A lease as a caller names it: by its label, or by its whole name.
///
/// A label means what the call is about: a plain lease for `Tenure::lease`, a role for
/// `Tenure::election`. A [`LeaseName`] means itself everywhere. A label that is not valid is
/// an error of the call that uses it.
///
/// ```
/// use tenure::{LeaseName, Tenure};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let plain = tenure.lease("cleanup").acquire().await?;
/// assert_eq!(plain.name().key(), "lease:cleanup");
/// let role = tenure.lease(LeaseName::role("cleanup")?).acquire().await?;
/// assert_eq!(role.name().key(), "leader:cleanup");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LeaseRef(LabelOrName);

#[derive(Clone, Debug)]
enum LabelOrName {
    Label(String),
    Name(LeaseName),
}

impl LeaseRef {
    /// The name; a label is that of a plain lease.
    #[doc(hidden)]
    pub fn lease(self) -> Result<LeaseName, NameError> {
        self.resolve(LeaseName::lease)
    }

    /// The name; a label is that of a role.
    #[doc(hidden)]
    pub fn role(self) -> Result<LeaseName, NameError> {
        self.resolve(LeaseName::role)
    }

    /// The label, as far as it can be told without knowing what it labels.
    #[doc(hidden)]
    pub fn label(&self) -> &str {
        match &self.0 {
            LabelOrName::Label(label) => label,
            LabelOrName::Name(name) => name.label(),
        }
    }

    fn resolve(self, by_label: fn(&str) -> Result<LeaseName, NameError>) -> Result<LeaseName, NameError> {
        match self.0 {
            LabelOrName::Label(label) => by_label(&label),
            LabelOrName::Name(name) => Ok(name),
        }
    }
}

impl From<&str> for LeaseRef {
    fn from(label: &str) -> Self {
        Self(LabelOrName::Label(label.to_owned()))
    }
}

impl From<String> for LeaseRef {
    fn from(label: String) -> Self {
        Self(LabelOrName::Label(label))
    }
}

impl From<&String> for LeaseRef {
    fn from(label: &String) -> Self {
        Self::from(label.as_str())
    }
}

impl From<LeaseName> for LeaseRef {
    fn from(name: LeaseName) -> Self {
        Self(LabelOrName::Name(name))
    }
}

impl From<&LeaseName> for LeaseRef {
    fn from(name: &LeaseName) -> Self {
        Self(LabelOrName::Name(name.clone()))
    }
}

/// The holder of a lease: one process, from its start to its end.
///
/// ```
/// use tenure::InstanceId;
///
/// let id = InstanceId::generate("api-7fd8c9", 1_736_598_400_000_000_000, 0xa1b2c3d4)?;
/// assert_eq!(id.as_str(), "api-7fd8c9-1736598400000000000-a1b2c3d4");
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct InstanceId(Arc<str>);

impl From<InstanceId> for String {
    fn from(id: InstanceId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl TryFrom<String> for InstanceId {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl InstanceId {
    /// Creates an id chosen by the caller. It must be unique among all processes that ever use the store: two processes
    /// with one id would treat each other's leases as their own.
    ///
    /// # Errors
    /// When the text is empty, too long, or has a character that is not allowed.
    pub fn new(text: &str) -> Result<Self, NameError> {
        check("instance id", text)?;
        Ok(Self(text.into()))
    }

    /// The id `<host>-<nanoseconds>-<8 hex>` of a process that started at this Unix time.
    ///
    /// # Errors
    /// When the host name is empty, too long, or has a character that is not allowed.
    pub fn generate(host: &str, started_unix_nanos: u64, suffix: u32) -> Result<Self, NameError> {
        check("instance name", host)?;
        Self::new(&format!("{host}-{started_unix_nanos}-{suffix:08x}"))
    }

    /// As [`generate`](Self::generate), from any host name: without the characters that are not allowed, and `unknown`
    /// when nothing usable is left.
    pub fn generate_lossy(host: &str, started_unix_nanos: u64, suffix: u32) -> Self {
        let host: String = host.chars().filter(|c| is_allowed(*c)).collect();
        let host = if check("instance name", &host).is_ok() { host.as_str() } else { "unknown" };
        Self(format!("{host}-{started_unix_nanos}-{suffix:08x}").into())
    }

    /// A holder as another program wrote it into the store. Characters that are not allowed are replaced, so that it
    /// can be displayed.
    pub fn foreign(text: &str) -> Self {
        match Self::new(text) {
            Ok(id) => id,
            Err(_) => {
                let shown: String = text.chars().take(64).map(|c| if is_allowed(c) { c } else { '?' }).collect();
                Self(format!("foreign?{shown}").into())
            }
        }
    }

    /// The name part of a [generated](Self::generate) id: the same for every start of a replica. Otherwise the id.
    pub fn name(&self) -> &str {
        let mut parts = self.0.rsplitn(3, '-');
        let (suffix, nanos, name) = (parts.next(), parts.next(), parts.next());
        let made = suffix
            .is_some_and(|suffix| suffix.len() == 8 && suffix.bytes().all(|byte| byte.is_ascii_hexdigit()))
            && nanos.is_some_and(|nanos| !nanos.is_empty() && nanos.bytes().all(|byte| byte.is_ascii_digit()));
        name.filter(|_| made).unwrap_or(&self.0)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstanceId({})", self.0)
    }
}

/// A set of instances that discover each other by heartbeats: the whole fleet, or the candidates of a role.
///
/// ```
/// use tenure::Group;
///
/// assert_eq!(Group::candidates("my-app:heartbeat:")?.prefix(), Some("my-app:heartbeat:"));
/// assert!(Group::candidates("leader:").is_err());
/// # Ok::<(), tenure::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "Option<String>", try_from = "Option<String>")]
pub struct Group(Option<Arc<str>>);

impl From<Group> for Option<String> {
    fn from(group: Group) -> Self {
        group.prefix().map(str::to_owned)
    }
}

impl TryFrom<Option<String>> for Group {
    type Error = NameError;

    fn try_from(prefix: Option<String>) -> Result<Self, NameError> {
        prefix.map_or(Ok(Self::FLEET), |prefix| Self::candidates(&prefix))
    }
}

impl Group {
    /// Every instance: `poll:node:<instance>`, unless another prefix is configured.
    pub const FLEET: Self = Self(None);

    /// The instances whose heartbeats have this prefix, which may contain one hash tag.
    ///
    /// # Errors
    /// When the prefix is not valid, or could be one of leases.
    pub fn candidates(prefix: &str) -> Result<Self, NameError> {
        check_prefix_with_max_length(MAX_GROUP_LENGTH, prefix)?;
        let plain = prefix.replace(['{', '}'], "");
        if plain.starts_with(RESERVED_PREFIX) {
            return Err(NameError::Reserved { key: prefix.to_owned() });
        }
        if ["lease:", "leader:"].iter().any(|leases| plain.starts_with(leases)) || plain.contains(":lease:") {
            return Err(NameError::HeartbeatPrefix { prefix: prefix.to_owned() });
        }
        Ok(Self(Some(prefix.into())))
    }

    /// The candidates of a role whose election has no custom prefix: `heartbeat:<role>:`.
    ///
    /// # Errors
    /// When the role is not valid.
    pub fn of_role(role: &str) -> Result<Self, NameError> {
        Self::candidates(&format!("heartbeat:{role}:"))
    }

    /// The prefix of their heartbeats; `None` for the fleet.
    pub fn prefix(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({})", self.prefix().unwrap_or("fleet"))
    }
}

fn is_allowed(character: char) -> bool {
    !character.is_control() && !character.is_whitespace() && !matches!(character, '{' | '}')
}

/// Checks that a text can be a name, or part of a key. `what` names it in the error.
///
/// # Errors
/// When it is empty, too long, or has a character that is not allowed.
pub fn check(what: &'static str, text: &str) -> Result<(), NameError> {
    check_with_max_length(MAX_NAME_LENGTH, what, text)
}

fn check_with_max_length(max_length: usize, what: &'static str, text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.len() > max_length {
        return Err(NameError::TooLong { what, length: text.len(), max_length });
    }
    match text.char_indices().find(|(_, c)| !is_allowed(*c)) {
        Some((at, character)) => Err(NameError::BadCharacter { what, text: text.to_owned(), character, at }),
        None => Ok(()),
    }
}

/// Checks that a text can be the prefix of keys. It may have one hash tag.
///
/// # Errors
/// When it is empty, too long, or has a character that is not allowed.
pub fn check_prefix(prefix: &str) -> Result<(), NameError> {
    check_prefix_with_max_length(MAX_NAME_LENGTH, prefix)
}

fn check_prefix_with_max_length(max_length: usize, prefix: &str) -> Result<(), NameError> {
    let bad_tag = || NameError::BadHashTag { prefix: prefix.to_owned() };
    let plain = match prefix.split_once('{') {
        None => prefix.to_owned(),
        Some((before, rest)) => {
            let (tag, after) = rest.split_once('}').ok_or_else(bad_tag)?;
            if tag.is_empty() || [before, tag, after].iter().any(|part| part.contains(['{', '}'])) {
                return Err(bad_tag());
            }
            format!("{before}{tag}{after}")
        }
    };
    check_with_max_length(max_length, "prefix", &plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_prefix() -> Result<(), NameError> {
        let names = [LeaseName::lease("x")?, LeaseName::role("x")?, LeaseName::target("poll", "x")?];
        assert_eq!(names.iter().map(LeaseName::key).collect::<Vec<_>>(), ["lease:x", "leader:x", "poll:lease:x"]);
        assert!(names.iter().all(|name| name.label() == "x"));
        Ok(())
    }

    #[test]
    fn labels_cannot_break_out_of_a_prefix_or_a_hash_tag() {
        for bad in ["", " ", "a b", "a\nb", "a\0b", "{", "}", "a{b}c", "\u{85}", &"x".repeat(257)] {
            assert!(LeaseName::lease(bad).is_err(), "{bad:?}");
            assert!(InstanceId::new(bad).is_err(), "{bad:?}");
            assert!(LeaseName::target(bad, "x").is_err(), "{bad:?}");
        }
        for good in ["a", "*", "[a-z]?", "päusen", "\"'\\", "a:b:c", "tenure:ns", &"x".repeat(256)] {
            assert!(LeaseName::lease(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_prefix_may_have_one_hash_tag_and_is_never_reserved() {
        let with = |prefix| LeaseName::with_prefix(LeaseKind::Role, prefix, "x");
        assert_eq!(with("{my-app}:leader:").unwrap().key(), "{my-app}:leader:x");
        assert_eq!(with("{my-app}:leader:").unwrap().label(), "x");
        for bad in ["", "{}:", "{a", "a}", "{a}{b}", "{{a}}", "tenure:", "tenure:term:", "{tenure:ns}"] {
            assert!(with(bad).is_err(), "{bad:?}");
        }
        assert!(LeaseName::with_prefix(LeaseKind::Role, "tenure", ":ns").is_err());
        assert!(LeaseName::with_prefix(LeaseKind::Role, "{t}", "enure:ns").is_err());
        assert!(LeaseName::target("tenure", "x").is_err());
        for pool in ["lease", "leader", "a:b"] {
            assert!(LeaseName::target(pool, "x").is_err(), "{pool} would share keys with others");
        }
    }

    #[test]
    fn names_encode_to_one_word_and_decode_back() {
        let names = [
            LeaseName::lease("a:b").unwrap(),
            LeaseName::target("poll", "päusen").unwrap(),
            LeaseName::with_prefix(LeaseKind::Role, "{my-app}:leader:", "x").unwrap(),
        ];
        for name in names {
            let back = LeaseName::decode(&name.encode()).unwrap();
            assert_eq!((back.key(), back.label(), back.kind()), (name.key(), name.label(), name.kind()));
        }
        for bad in ["", "l", "l6", "x6:lease:a", "l99:lease:a", "l-1:lease:a", "t12:poll:lease:ä b", "l7:tenure:a"] {
            assert_eq!(LeaseName::decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn foreign_holder_ids_are_made_printable() {
        assert_eq!(InstanceId::foreign("node-1").as_str(), "node-1");
        assert_eq!(InstanceId::foreign("a b\n{c}").as_str(), "foreign?a?b??c?");
        assert_eq!(InstanceId::foreign("").as_str(), "foreign?");
        assert!(InstanceId::foreign(&"\n".repeat(10_000)).as_str().len() < 100);
    }
}
