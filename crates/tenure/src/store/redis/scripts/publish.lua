-- Writes a record beside the lease, unless the term is over.
--
-- KEYS  1 lease, 2 term record, 3 records
-- ARGV  1 holder, 2 token, 3 record, 4 value, 5 '1' to announce it, 6 name for the announcement, 7 channel
local refused = refusal_unless_accepted(redis.call('GET', KEYS[1]), read_term(KEYS[2]), ARGV[1], ARGV[2])
if refused then
  return refused
end
redis.call('HSET', KEYS[3], ARGV[3], ARGV[2] .. ' ' .. digits(clock()) .. ' ' .. ARGV[4])
if ARGV[5] == '1' then
  announce(ARGV[7], 'published ' .. ARGV[2] .. ' ' .. ARGV[6] .. ' ' .. ARGV[3])
end
return {'done'}
