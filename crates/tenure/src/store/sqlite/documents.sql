-- Documents, where there were only sessions; attempts to append to logs; the logs that are watched.
CREATE TABLE documents (
    namespace TEXT NOT NULL,
    collection TEXT NOT NULL,
    id TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (namespace, collection, id)
) WITHOUT ROWID;
INSERT INTO documents SELECT namespace, 'sessions', id, value FROM sessions;
DROP TABLE sessions;
UPDATE entries SET list = 'sessions:deleted' WHERE list = 'gone';

ALTER TABLE logs ADD COLUMN nonce TEXT NOT NULL DEFAULT '';

CREATE TABLE watched (
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;
