-- Extends the term for a whole ttl from now. The first write is PEXPIRE, which works when memory is full.
--
-- This is the most frequent script, so it reads no more than it needs. It reads the rest of the record only to explain
-- a refusal.
--
-- KEYS  1 lease, 2 term record, 3 namespace record
-- ARGV  1 holder, 2 token, 3 ttl in milliseconds, 4 '1' when there was progress, 5 channel
local f = redis.call('HMGET', KEYS[2], 'token', 'holder', 'ended', 'nonce', 'wait_out_until', 'asked', 'idled', 'ttl')
local lease_holder = redis.call('GET', KEYS[1])
local is_current = lease_holder == ARGV[1] and f[1] == ARGV[2] and f[2] == ARGV[1] and f[3] == 'silently'
  and f[4] and f[4] ~= '' and f[5] and f[6]
if not is_current then
  return refusal_unless_accepted(lease_holder, read_term(KEYS[2]), ARGV[1], ARGV[2])
end
local wait_out_until, asked, idled, class = f[5], f[6], f[7] == '1', f[8]
optional(KEYS[2], wait_out_until)
local now, ttl = clock(), tonumber(ARGV[3])

-- The ttl is relied on from now. Usually its class lasts long enough and is the longest, and there is nothing to write.
local n = redis.call('HMGET', KEYS[3], 'ttls', 'closed_until', 'closed_for')
local waited_for = n[2] and n[3] and quarantine_left(n[2], n[3], now) > 0 and tonumber(n[3]) or 0
local longest, ends = string.match(n[1] or '', '^ (%d+):(%d+):')
local max_ttl, ttls, longer = waited_for, nil, false
if longest == ARGV[3] and class == ARGV[3] and ends - now >= ttl * 1000 and tonumber(ends) <= furthest_end(now, ttl) then
  max_ttl = math.max(max_ttl, ttl * 1000)
elseif n[1] then
  local classes = read_ttls(n[1])
  max_ttl = math.max(max_ttl, longest_ttl(classes, now))
  local extended, changed = extend_ttl(classes, now, ttl, class and whole(KEYS[2], class) or nil)
  longer = extended * 1000 > max_ttl
  max_ttl = math.max(waited_for, longest_ttl(classes, now))
  class = digits(extended)
  if changed then
    -- After a restart every class on record is waited for, so lapsed classes must not stay there, except in a
    -- quarantine, which may be waiting for them.
    if waited_for == 0 then
      expire_ttls(classes, now)
    end
    ttls = write_ttls(classes)
  end
end

redis.call('PEXPIRE', KEYS[1], ttl)
if ttls then
  redis.call('HSET', KEYS[3], 'ttls', ttls)
end
if class and class ~= f[8] then
  redis.call('HSET', KEYS[2], 'ttl', class)
end
if longer then
  announce_longest(ARGV[5], max_ttl, now)
end
if ARGV[4] == '1' then
  local progress = now
  if wait_out_until ~= '' then
    -- A holder that must wait cannot make progress, and must not lose its lease for that.
    progress = math.max(now, math.min(tonumber(wait_out_until), now + max_ttl))
  end
  redis.call('HSET', KEYS[2], 'progress', digits(progress), 'idled', '')
elseif not idled then
  redis.call('HSET', KEYS[2], 'idled', '1')
end
if asked ~= '' then
  return {'renewed', now, max_ttl, asked}
end
return {'renewed', now, max_ttl}
