-- Adds an entry to a log beside the lease, unless the term is over or the last entry is of the same attempt.
--
-- KEYS  1 lease, 2 term record, 3 log, 4 records, 5 mark that the logs are watched
-- ARGV  1 holder, 2 token, 3 value, 4 how many entries to keep, 5 nonce of the attempt, 6 announcement, 7 channel,
--       and then the records to write with it: name, value
local refused = refusal_unless_accepted(redis.call('GET', KEYS[1]), read_term(KEYS[2]), ARGV[1], ARGV[2])
if refused then
  return refused
end
for at = 8, #ARGV, 2 do
  redis.call('HSET', KEYS[4], ARGV[at], ARGV[2] .. ' ' .. digits(clock()) .. ' ' .. ARGV[at + 1])
end
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
if last and last[2][6] == ARGV[5] then
  return {'done'}
end
local function add()
  return redis.pcall('XADD', KEYS[3], 'MAXLEN', ARGV[4], '*', 'token', ARGV[2], 'value', ARGV[3], 'nonce', ARGV[5])
end
local added = add()
if type(added) == 'table' and added.err and string.find(added.err, 'smaller', 1, true) then
  -- Another program has used up all ids: nothing can be added to such a log ever again.
  redis.call('DEL', KEYS[3])
  added = add()
end
if type(added) == 'table' and added.err then
  return redis.error_reply(added.err)
end
if redis.call('EXISTS', KEYS[5]) == 1 then
  announce(ARGV[7], ARGV[6])
end
return {'done'}
