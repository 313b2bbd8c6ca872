-- Adds an instance to the index of its group.
--
-- KEYS  1 index
-- ARGV  1 ttl in milliseconds, 2 instance
index_instance(KEYS[1], ARGV[2], tonumber(ARGV[1]))
return {'done'}
