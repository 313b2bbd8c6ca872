-- The heartbeats. The circle is the prefix of a group's heartbeats, and empty for the whole fleet.
CREATE TABLE members (
    namespace TEXT NOT NULL,
    circle TEXT NOT NULL,
    instance TEXT NOT NULL,
    record BLOB NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (namespace, circle, instance)
) WITHOUT ROWID;
