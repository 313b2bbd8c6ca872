-- Ends a term whose work is over. A repeated release changes nothing.
--
-- KEYS  1 lease, 2 term record, 3 namespace record
-- ARGV  1 holder, 2 token, or '' to clean up after a claim whose outcome is unknown, 3 nonce of that claim,
--       4 how it ended, 5 name for the announcement, 6 channel
local term = read_term(KEYS[2])
local lease_holder = redis.call('GET', KEYS[1])
local holder, token = ARGV[1], ARGV[2]
if token == '' then
  if not term or term.nonce ~= ARGV[3] or term.holder ~= holder then
    return {'done'}
  end
  token = term.token
end
local refused = refusal(lease_holder, term, holder, token)
-- The holder of a revoked term releases the lease that it still occupies.
if refused and not (refused[2] == 'revoked' and lease_holder == holder) then
  local again = term and was_granted_under(term, token) and term.holder == holder and term.ended == 'released'
  if again or ARGV[2] == '' then
    return {'done'}
  end
  return refused
end
local ends = redis.call('PTTL', KEYS[1]) >= 0
redis.call('DEL', KEYS[1])
if ends then
  forget_ttl(KEYS[3], term, ARGV[6])
end
redis.call('HSET', KEYS[2], 'ended', 'released', 'ending', ARGV[4])
announce(ARGV[6], 'released ' .. term.token .. ' ' .. ARGV[5])
return {'done'}
