-- Ends a quarantine on the operator's authority.
--
-- KEYS  1 namespace record
-- ARGV  1 generation, 2 its stamp, 3 channel
local now, ns = clock(), read_namespace(KEYS[1])
if not ns or ns.generation ~= ARGV[1] or ns.stamp ~= ARGV[2] then
  return {'not_entered'}
end
if quarantine_left(ns.closed_until, ns.closed_for, now) > 0 then
  -- Kept without a length: an instance that attaches later and remembers the lost data begins no other.
  redis.call('HSET', KEYS[1], 'closed_for', '0')
  announce(ARGV[3], 'reopened')
elseif ns.closed_until ~= '' and ns.closed_for > 0 then
  redis.call('HSET', KEYS[1], 'closed_until', '')
end
return {'done'}
