-- Tells what is known about a lease.
--
-- KEYS  1 lease, 2 term record, 3 namespace record
local now = clock()
local known = redis.call('HGET', KEYS[3], 'max_ttl')
local max_ttl = known and math.min(whole(KEYS[3], known), LONGEST) or LONGEST
local lease_holder = redis.call('GET', KEYS[1])
local term = read_term(KEYS[2])
local somebody = lease_holder and held(KEYS[1], lease_holder, term, now, max_ttl) or false
if not term then
  return {'lease', somebody}
end
local asked = term.ended == 'silently' and term.asked or ''
return {'lease', somebody, term.token, term.holder, term.ended, term.since, term.ending, asked}
