-- Ends a quarantine on the operator's authority.
--
-- KEYS  1 namespace record
-- ARGV  1 generation, 2 its stamp, 3 channel
local now, ns = clock(), read_namespace(KEYS[1])
if not ns or ns.generation ~= ARGV[1] or ns.stamp ~= ARGV[2] then
  return {'not_entered'}
end
if ns.closed_until ~= '' then
  -- Kept without a length: an instance that attaches later and remembers the lost data begins no other.
  redis.call('HSET', KEYS[1], 'closed_for', '0')
end
if quarantine_left(ns.closed_until, ns.closed_for, now) > 0 then
  announce(ARGV[3], 'reopened')
end
return {'done'}
