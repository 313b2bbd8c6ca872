-- Who is alive. The circle is what the heartbeats of a group begin with, and empty for the whole fleet.
CREATE TABLE members (
    namespace TEXT NOT NULL,
    circle TEXT NOT NULL,
    instance TEXT NOT NULL,
    record BLOB NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (namespace, circle, instance)
) WITHOUT ROWID;
