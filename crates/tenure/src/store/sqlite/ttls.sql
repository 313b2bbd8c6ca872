-- Which ttls can still be relied on, and what a quarantine waits for. `namespaces` had one longest ttl before.
CREATE TABLE ttls (
    namespace TEXT NOT NULL,
    ttl INTEGER NOT NULL,
    until INTEGER NOT NULL,
    -- Empty when it is not known how many leases there are.
    leases INTEGER,
    PRIMARY KEY (namespace, ttl)
) WITHOUT ROWID;
-- A time that cannot be is corrected when it is next looked at.
INSERT INTO ttls (namespace, ttl, until) SELECT namespace, max_ttl, 9007199254740991 FROM namespaces WHERE max_ttl > 0;
ALTER TABLE namespaces ADD COLUMN closed_for INTEGER NOT NULL DEFAULT 0;
UPDATE namespaces SET closed_for = max_ttl;
ALTER TABLE namespaces DROP COLUMN max_ttl;
ALTER TABLE namespaces ADD COLUMN closed_because TEXT NOT NULL DEFAULT 'server_restarted';
ALTER TABLE namespaces ADD COLUMN closed_informed INTEGER NOT NULL DEFAULT 0;
-- The ttl of the last term: the lease cannot have longer left.
ALTER TABLE leases ADD COLUMN ttl INTEGER;
