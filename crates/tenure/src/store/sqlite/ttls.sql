-- The ttls that can still be relied on, and what a quarantine waits for. Before, `namespaces` had one longest ttl.
CREATE TABLE ttls (
    namespace TEXT NOT NULL,
    ttl INTEGER NOT NULL,
    until INTEGER NOT NULL,
    -- NULL when the number of leases is unknown.
    leases INTEGER,
    PRIMARY KEY (namespace, ttl)
) WITHOUT ROWID;
-- An impossible time, which the next check corrects.
INSERT INTO ttls (namespace, ttl, until) SELECT namespace, max_ttl, 9007199254740991 FROM namespaces WHERE max_ttl > 0;
ALTER TABLE namespaces ADD COLUMN closed_for INTEGER NOT NULL DEFAULT 0;
UPDATE namespaces SET closed_for = max_ttl;
ALTER TABLE namespaces DROP COLUMN max_ttl;
ALTER TABLE namespaces ADD COLUMN closed_because TEXT NOT NULL DEFAULT 'server_restarted';
ALTER TABLE namespaces ADD COLUMN closed_informed INTEGER NOT NULL DEFAULT 0;
-- The ttl of the last term: the lease cannot have more time left.
ALTER TABLE leases ADD COLUMN ttl INTEGER;
