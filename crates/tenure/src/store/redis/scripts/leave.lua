-- Removes an instance that is leaving.
--
-- KEYS  1 heartbeat, 2 record that the instance publishes about itself
-- ARGV  1 announcement, 2 channel
local was_there = redis.call('DEL', KEYS[1]) == 1
redis.call('DEL', KEYS[2])
if was_there then
  announce(ARGV[2], ARGV[1])
end
return {'done'}
