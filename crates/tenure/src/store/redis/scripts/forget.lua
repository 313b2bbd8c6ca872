-- Deletes everything about an unheld lease. The floor of tokens rises to its last token, so that tokens keep
-- increasing.
--
-- KEYS  1 lease, 2 term record, 3 namespace, 4 records, then the logs; if the lease was for a document: that document, and
--       the index of deleted ones
-- ARGV  1 how long ago its last term must have begun, 2 number of logs, 3 the document's id
local document, deleted = KEYS[5 + ARGV[2]], KEYS[6 + ARGV[2]]
if redis.call('EXISTS', KEYS[1]) == 1 or document and redis.call('EXISTS', document) == 1 then
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
if deleted then
  redis.call('SREM', deleted, ARGV[3])
end
redis.call('DEL', KEYS[2], unpack(KEYS, 4, 4 + ARGV[2]))
return {'done'}
