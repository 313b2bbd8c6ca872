-- Asks something of the holder of a term. It is stored: the next renewal delivers it even if the announcement is lost.
--
-- KEYS  1 lease, 2 term record
-- ARGV  1 token, 2 what is asked, 3 name for the announcement, 4 channel
local lease_holder = redis.call('GET', KEYS[1])
if not lease_holder then
  return {'refused', 'missing'}
end
local term = read_term(KEYS[2])
if not term then
  return {'refused', 'store_reset'}
end
if term.token ~= ARGV[1] or term.holder ~= lease_holder or term.ended ~= 'silently' then
  return {'refused', 'taken', lease_holder}
end
redis.call('HSET', KEYS[2], 'asked', ARGV[2])
announce(ARGV[4], 'asked ' .. ARGV[1] .. ' ' .. ARGV[3])
return {'done'}
