-- The layout of the file, except members.sql, service.sql, ttls.sql and documents.sql, which came later.
-- Times are microseconds on the clock of host.rs.

-- The boot and the host that the times belong to.
CREATE TABLE host (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    identity TEXT NOT NULL,
    -- Added to the time since boot, it yields a Unix time that setting the wall clock does not move.
    epoch INTEGER NOT NULL,
    -- Wall-clock time, refreshed every few seconds while a process writes.
    touched INTEGER NOT NULL,
    -- Time since boot when the file was created beside leftovers of another: a process may still have that one open.
    orphaned INTEGER
);

CREATE TABLE namespaces (
    namespace TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    stamp INTEGER NOT NULL,
    closed_until INTEGER,
    max_ttl INTEGER NOT NULL,
    token_floor INTEGER NOT NULL
) WITHOUT ROWID;

-- A lease (holder, expires: empty while it is unheld) and its last term.
CREATE TABLE leases (
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    holder TEXT,
    expires INTEGER,
    token INTEGER,
    term_holder TEXT,
    nonce TEXT,
    since INTEGER,
    ended TEXT,
    wait_out_until INTEGER,
    progress INTEGER,
    -- Whether it was renewed without progress since.
    idled INTEGER NOT NULL DEFAULT 0,
    asked TEXT,
    ending TEXT,
    deposed INTEGER,
    previous_token INTEGER,
    previous_holder TEXT,
    previous_ended TEXT,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

CREATE TABLE records (
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    record TEXT NOT NULL,
    token INTEGER NOT NULL,
    at INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (namespace, key, record)
) WITHOUT ROWID;

CREATE TABLE entries (
    namespace TEXT NOT NULL,
    list TEXT NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY (namespace, list, entry)
) WITHOUT ROWID;

-- Notes about terms.
CREATE TABLE notes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX notes_of_a_namespace ON notes (namespace, number);

-- The last announcements. Numbers are never used twice, so a subscriber detects what it missed.
CREATE TABLE announcements (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    text TEXT NOT NULL
);
