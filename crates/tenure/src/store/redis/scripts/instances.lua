-- Lists the instances in the index that are alive. For an instance that uses Tenure, the index has the expiry of its
-- heartbeat. An instance without a record about itself may be a foreign program or may be gone; for it the script reads
-- the heartbeat. The script builds the keys of heartbeats: all keys must be on one server.
--
-- KEYS  1 index
-- ARGV  1 prefix of heartbeats, 2 and 3 what precedes and follows a heartbeat's key in the key of an instance's record
local now = math.floor(clock() / 1000)
local listed = redis.call('ZRANGE', KEYS[1], '(' .. digits(now), '+inf', 'BYSCORE', 'WITHSCORES')
local members = {'members'}
-- A script can pass only a limited number of arguments at once.
for first = 1, #listed, 2000 do
  local said = {}
  for at = first, math.min(first + 1998, #listed), 2 do
    said[#said + 1] = ARGV[2] .. ARGV[1] .. listed[at] .. ARGV[3]
  end
  said = redis.call('MGET', unpack(said))
  for n = 1, #said do
    local instance, ends = listed[first + 2 * n - 2], listed[first + 2 * n - 1]
    local left = said[n] and ends ~= 'inf' and ends - now or redis.call('PTTL', ARGV[1] .. instance)
    if left == -2 then
      redis.call('ZREM', KEYS[1], instance)
    else
      local at = #members
      members[at + 1], members[at + 2], members[at + 3] = instance, said[n] or '', left
    end
  end
end
return members
