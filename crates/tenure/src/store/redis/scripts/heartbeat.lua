-- Writes the heartbeat of an instance.
--
-- KEYS  1 heartbeat, 2 record that the instance publishes about itself
-- ARGV  1 ttl in milliseconds, 2 record, 3 '1' when the heartbeat is the time, 4 announcement, 5 channel
beat(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
return {'done'}
