-- Lets the term go on for a whole ttl from now. The first write is PEXPIRE, which works when memory is full.
--
-- KEYS  1 lease, 2 term record, 3 namespace record
-- ARGV  1 holder, 2 token, 3 ttl in milliseconds, 4 '1' when there was progress
local term = read_term(KEYS[2])
local refused = refusal_unless_taken_up(redis.call('GET', KEYS[1]), term, ARGV[1], ARGV[2])
if refused then
  return refused
end
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
  if term.wait_out_until ~= '' then
    -- Whoever has to wait cannot make progress, and must not be deposed for it.
    progress = math.max(now, math.min(tonumber(term.wait_out_until), now + max_ttl))
  end
  redis.call('HSET', KEYS[2], 'progress', digits(progress), 'idled', '')
elseif not term.idled then
  redis.call('HSET', KEYS[2], 'idled', '1')
end
if term.asked ~= '' then
  return {'renewed', now, max_ttl, term.asked}
end
return {'renewed', now, max_ttl}
