-- Reports the state of the namespace.
--
-- KEYS  1 namespace record
local now, ns = clock(), read_namespace(KEYS[1])
if not ns then
  return {'namespace', now, 0, '', '', 0, ''}
end
local left = quarantine_left(ns.closed_until, ns.closed_for, now)
return {'namespace', now, namespace_ttl(ns, now), ns.generation, ns.stamp, left, left > 0 and ns.closed_because or ''}
