-- Lists everybody in the index who is alive, and takes the others out of it; one that comes back puts itself in again. The keys of
-- heartbeats are made here: all keys must be on one server.
--
-- KEYS  1 index
-- ARGV  1 what heartbeats begin with, 2 and 3 what stands before and after a heartbeat in the key of what an instance says about itself
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', math.floor(clock() / 1000))
local members = {'members'}
for _, instance in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local heartbeat = ARGV[1] .. instance
  local left = redis.call('PTTL', heartbeat)
  if left == -2 then
    redis.call('ZREM', KEYS[1], instance)
  else
    local said = redis.pcall('GET', ARGV[2] .. heartbeat .. ARGV[3])
    members[#members + 1] = {instance, type(said) == 'string' and said or '', left}
  end
end
return members
