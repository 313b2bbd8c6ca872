-- Ends a term by force. The key stays until its holder releases the lease or the ttl ends: the work may still be
-- running, and only the holder knows. A repeated revocation changes nothing.
--
-- KEYS  1 lease, 2 term record, 3 namespace record
-- ARGV  1 token, 2 name for the announcement, 3 channel
local lease_holder = redis.call('GET', KEYS[1])
if not lease_holder then
  return {'refused', 'missing'}
end
local term = read_term(KEYS[2])
if not term or term.holder ~= lease_holder or not was_granted_under(term, ARGV[1]) then
  return {'refused', 'taken', lease_holder}
end
if term.ended == 'silently' then
  redis.call('HSET', KEYS[2], 'ended', 'revoked', 'asked', '')
  -- Services that compare tokens refuse the holder from now on.
  local now, floor = clock(), redis.call('HGET', KEYS[3], 'token_floor')
  local raised = math.max(math.max(tonumber(term.token), floor and whole(KEYS[3], floor) or 0) + 1, now)
  if raised <= 9007199254740991 then
    redis.call('HSET', KEYS[2], 'token', digits(raised), 'deposed', term.token)
    if floor then
      redis.call('HSET', KEYS[3], 'token_floor', digits(raised_floor(tonumber(floor), raised, now)))
    end
  end
  announce(ARGV[3], 'revoked ' .. ARGV[1] .. ' ' .. ARGV[2])
end
return {'done'}
