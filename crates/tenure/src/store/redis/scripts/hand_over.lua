-- Ends the term in favour of another instance, which must acquire the lease within the window.
--
-- KEYS  1 lease, 2 term record, 3 namespace record
-- ARGV  1 holder, 2 token, 3 receiver, 4 window in milliseconds, 5 name for the announcement, 6 channel
local term = read_term(KEYS[2])
local refused = refusal_unless_accepted(redis.call('GET', KEYS[1]), term, ARGV[1], ARGV[2])
if refused then
  return refused
end
local now = clock()
local floor = redis.call('HGET', KEYS[3], 'token_floor')
local minted = math.max(math.max(tonumber(ARGV[2]), floor and whole(KEYS[3], floor) or 0) + 1, now)
if minted > 9007199254740991 then
  return {'tokens_exhausted'}
end
local token = digits(minted)
local ends = redis.call('PTTL', KEYS[1]) >= 0
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('SET', KEYS[1], ARGV[3], 'XX', 'PX', ARGV[4])
if ends then
  forget_ttl(KEYS[3], term, ARGV[6])
end
-- No nonce: the term is an offer until its receiver acquires it. The receiver relies on nothing before.
redis.call('HSET', KEYS[2], 'token', token, 'holder', ARGV[3], 'nonce', '', 'ttl', ARGV[4], 'since', digits(now), 'ended', 'silently',
  'progress', digits(now), 'idled', '', 'asked', '', 'ending', '', 'deposed', '', 'previous_token', term.token,
  'previous_holder', term.holder, 'previous_ended', 'handed_over')
if floor then
  redis.call('HSET', KEYS[3], 'token_floor', digits(raised_floor(tonumber(floor), minted, now)))
end
announce(ARGV[6], 'handed_over ' .. token .. ' ' .. ARGV[5] .. ' ' .. ARGV[3])
return {'handed_over', token}
