-- Sets or deletes a document, if it is what its writer has seen or already is as requested. It is in the index of its
-- collection while it exists, and afterwards in the index of deleted ones.
--
-- KEYS  1 document, 2 index, 3 index of deleted documents
-- ARGV  1 '1' if the writer saw a value, 2 that value, 3 '1' to set and otherwise delete, 4 the new value,
--       5 its id, 6 announcement, 7 channel, 8 '1' to refuse while anything is left of a deleted document
local now, deleted = redis.call('GET', KEYS[1]), redis.call('SISMEMBER', KEYS[3], ARGV[5])
redis.call('SISMEMBER', KEYS[2], ARGV[5]) -- an index that cannot be written must fail before anything is written
local seen, wanted = ARGV[1] == '1' and ARGV[2], ARGV[3] == '1' and ARGV[4]
if now ~= wanted then
  if now ~= seen then
    return {'changed', now}
  end
  if ARGV[8] == '1' and deleted == 1 then
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
