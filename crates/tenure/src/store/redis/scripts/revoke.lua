-- Ends a term by force. The key stays until its holder lets go or the ttl ends: its work may be running, and only the
-- holder knows. Said again, it changes nothing.
--
-- KEYS  1 lease, 2 term record
-- ARGV  1 token, 2 name for the announcement, 3 channel
local lease_holder = redis.call('GET', KEYS[1])
if not lease_holder then
  return {'refused', 'missing'}
end
local term = read_term(KEYS[2])
if not term or term.holder ~= lease_holder or term.token ~= ARGV[1] then
  return {'refused', 'taken', lease_holder}
end
if term.ended == 'silently' then
  redis.call('HSET', KEYS[2], 'ended', 'revoked', 'asked', '')
  announce(ARGV[3], 'revoked ' .. ARGV[1] .. ' ' .. ARGV[2])
end
return {'done'}
