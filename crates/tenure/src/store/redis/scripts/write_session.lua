-- Makes a session what it should be, or nothing, if it is what was seen of it or is so already. It stands in the index while it is there, and in that of
-- those that are gone afterwards.
--
-- KEYS  1 session, 2 index, 3 index of those that are gone
-- ARGV  1 '1' when something was seen, 2 what, 3 '1' when it should be something, 4 what, 5 its id, 6 announcement, 7 channel,
--       8 '1' when nothing may be left of one that was deleted
local now, gone = redis.call('GET', KEYS[1]), redis.call('SISMEMBER', KEYS[3], ARGV[5])
redis.call('SISMEMBER', KEYS[2], ARGV[5]) -- what cannot be written must be known before anything is
local seen, wanted = ARGV[1] == '1' and ARGV[2], ARGV[3] == '1' and ARGV[4]
if now ~= wanted then
  if now ~= seen then
    return {'changed', now}
  end
  if ARGV[8] == '1' and gone == 1 then
    return {'in_use'}
  end
  if wanted then
    redis.call('SET', KEYS[1], wanted)
  else
    redis.call('DEL', KEYS[1])
  end
  announce(ARGV[7], ARGV[6])
end
if wanted then
  redis.call('SADD', KEYS[2], ARGV[5])
  redis.call('SREM', KEYS[3], ARGV[5])
elseif redis.call('SREM', KEYS[2], ARGV[5]) == 1 or now then
  redis.call('SADD', KEYS[3], ARGV[5])
end
return {'done'}
