-- Says that an instance is alive.
--
-- KEYS  1 heartbeat, 2 what the instance says about itself
-- ARGV  1 ttl in milliseconds, 2 record, 3 instance, 4 channel
local joins = redis.call('EXISTS', KEYS[1]) == 0
redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[1])
if joins then
  announce(ARGV[4], 'joined ' .. ARGV[3])
end
return {'done'}
