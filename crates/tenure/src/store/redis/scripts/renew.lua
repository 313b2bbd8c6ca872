-- Lets the term go on for a whole ttl from now. The first write is PEXPIRE, which works when memory is full.
--
-- This is what a server does most, so it reads no more than it needs; the rest of the record is read only to say why not.
--
-- KEYS  1 lease, 2 term record, 3 namespace record
-- ARGV  1 holder, 2 token, 3 ttl in milliseconds, 4 '1' when there was progress
local f = redis.call('HMGET', KEYS[2], 'token', 'holder', 'ended', 'nonce', 'wait_out_until', 'asked', 'idled')
local lease_holder = redis.call('GET', KEYS[1])
local is_current = lease_holder == ARGV[1] and f[1] == ARGV[2] and f[2] == ARGV[1] and f[3] == 'silently'
  and f[4] and f[4] ~= '' and f[5] and f[6]
if not is_current then
  return refusal_unless_taken_up(lease_holder, read_term(KEYS[2]), ARGV[1], ARGV[2])
end
local wait_out_until, asked, idled = f[5], f[6], f[7] == '1'
optional(KEYS[2], wait_out_until)
local now, ttl = clock(), tonumber(ARGV[3])
local known = redis.call('HGET', KEYS[3], 'max_ttl')
local max_ttl = known and math.min(whole(KEYS[3], known), LONGEST) or 0

redis.call('PEXPIRE', KEYS[1], ttl)
if known and ttl * 1000 > max_ttl then
  max_ttl = math.min(ttl * 1000, LONGEST)
  redis.call('HSET', KEYS[3], 'max_ttl', digits(max_ttl))
end
if ARGV[4] == '1' then
  local progress = now
  if wait_out_until ~= '' then
    -- Whoever has to wait cannot make progress, and must not be deposed for it.
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
