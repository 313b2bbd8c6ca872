-- Reports the state of a lease.
--
-- KEYS  1 lease, 2 term record, 3 namespace record
local now = clock()
local ns = read_namespace(KEYS[3])
local lease_holder = redis.call('GET', KEYS[1])
local term = read_term(KEYS[2])
local holding = lease_holder and held(KEYS[1], lease_holder, term, now, ns and namespace_ttl(ns, now) or 0) or false
if not term then
  return {'lease', holding}
end
local asked = term.ended == 'silently' and term.asked or ''
return {'lease', holding, term.token, term.holder, term.ended, term.since, term.ending, asked}
