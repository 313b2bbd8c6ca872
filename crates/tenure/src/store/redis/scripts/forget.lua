-- Deletes everything about an unheld lease. The floor of tokens rises to its last token, so that tokens keep
-- increasing.
--
-- KEYS  1 lease, 2 term record, 3 namespace, 4 session, 5 index of deleted sessions, 6 records, and then logs
-- ARGV  1 how long ago its last term must have begun, 2 the session's id
if redis.call('EXISTS', KEYS[1], KEYS[4]) > 0 then
  return {'in_use'}
end
local term, namespace, now = read_term(KEYS[2]), read_namespace(KEYS[3]), clock()
if term then
  local waits = term.wait_out_until ~= '' and tonumber(term.wait_out_until) > now
  if not namespace or waits or now - term.since < tonumber(ARGV[1]) then
    return {'in_use'}
  end
  local floor = raised_floor(namespace.token_floor, tonumber(term.token), now)
  if floor > namespace.token_floor then
    redis.call('HSET', KEYS[3], 'token_floor', digits(floor))
  end
end
redis.call('SREM', KEYS[5], ARGV[2])
redis.call('DEL', KEYS[2], unpack(KEYS, 6))
return {'done'}
