-- Logs beside leases, and sessions.
CREATE TABLE logs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    log TEXT NOT NULL,
    millis INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    token INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX entries_of_a_log ON logs (namespace, key, log, number);

CREATE TABLE sessions (
    namespace TEXT NOT NULL,
    id TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (namespace, id)
) WITHOUT ROWID;
