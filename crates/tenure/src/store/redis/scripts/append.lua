-- Adds an entry to a log beside the lease, unless the term is over, or it is the last one already.
--
-- KEYS  1 lease, 2 term record, 3 log
-- ARGV  1 holder, 2 token, 3 value, 4 how many are kept
local refused = refusal_unless_taken_up(redis.call('GET', KEYS[1]), read_term(KEYS[2]), ARGV[1], ARGV[2])
if refused then
  return refused
end
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
if last and last[2][2] == ARGV[2] and last[2][4] == ARGV[3] then
  return {'done'}
end
redis.call('XADD', KEYS[3], 'MAXLEN', ARGV[4], '*', 'token', ARGV[2], 'value', ARGV[3])
return {'done'}
