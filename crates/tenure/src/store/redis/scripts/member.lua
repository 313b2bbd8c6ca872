-- Tells what an instance says about itself and how long that may be believed; nothing when it is not alive.
--
-- KEYS  1 heartbeat, 2 what the instance says about itself
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  return {'nobody'}
end
return {'member', redis.call('GET', KEYS[2]) or '', left}
