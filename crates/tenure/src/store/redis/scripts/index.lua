-- Adds an entry to an index, or removes it.
--
-- KEYS  1 index
-- ARGV  1 'SADD' or 'SREM', 2 entry, 3 announcement, 4 channel
if redis.call(ARGV[1], KEYS[1], ARGV[2]) == 1 then
  announce(ARGV[4], ARGV[3])
end
return {'done'}
