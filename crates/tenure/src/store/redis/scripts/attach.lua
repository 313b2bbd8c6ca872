-- Attaches: checks whether the store's data is the data that the instance knew.
--
-- KEYS  1 namespace record
-- ARGV  1 server run, 2 uptime, 3 number of subscribers, 4 '1' when this run has served the namespace,
--       5 remembered generation ('' for a newcomer), 6 its stamp, 7 highest token remembered,
--       8 longest ttl known, 9 stamp for a new generation, 10 '1' to bootstrap, 11 '1' when a restart loses nothing,
--       12 channel, 13 '1' to observe without writing, 14 remembered history of the data or '',
--       15 time of the store's last reply as of the remembered generation, 16 remembered server run
local run, uptime, subscribers = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local newcomer, known = ARGV[5] == '', tonumber(ARGV[8])
local bootstrap, durable, observer = ARGV[10] == '1', ARGV[11] == '1', ARGV[13] == '1'
local now = clock()
local remembered, high_water = tonumber(ARGV[5]) or 0, math.min(tonumber(ARGV[7]), now + FURTHEST_AHEAD)
if remembered > now + FURTHEST_AHEAD then
  remembered = 0
end
local id, before = read_lineage()
local found = read_namespace(KEYS[1])

-- A new generation is announced: an instance that knows of longer leases must attach and lengthen the quarantine.
-- Otherwise the script publishes an empty message, which every subscriber ignores, to check that publishing is possible
-- at all.
local function answer(ns, minted, rolled_back, began, shortened)
  local text = minted and ('generation ' .. ns.generation .. ' ' .. ns.stamp) or shortened and 'reopened' or ''
  local published = redis.pcall('PUBLISH', ARGV[12], text)
  local publish_error = type(published) == 'table' and published.err or ''
  local left = quarantine_left(ns.closed_until, ns.closed_for, now)
  return {ns.generation, ns.stamp, minted and 1 or 0, now, id, before, namespace_ttl(ns, now), ns.token_floor,
    rolled_back and 1 or 0, left, left > 0 and ns.closed_because or '', began and 1 or 0, publish_error}
end

local ns = found or {generation = '0', stamp = '0', run = run, lineage = id, closed_until = '', closed_for = 0, closed_because = '',
  closed_informed = '', ttls = {}, token_floor = 0}
if observer then
  return answer(ns, false, false, false, false)
end
if ns.legacy_ttl and ns.legacy_ttl > 0 then
  extend_ttl(ns.ttls, now, math.ceil(ns.legacy_ttl / 1000), math.ceil(ns.legacy_ttl / 1000))
end

-- An operator has ended the quarantine of this generation.
local reopened = found and not ns.legacy_ttl and ns.closed_until ~= '' and ns.closed_for == 0
local rolled_back = found and not newcomer and ns.generation == ARGV[5] and ns.stamp == ARGV[6] and ns.token_floor < high_water
local minted, because, length, elapsed = not found, '', known, 0
if not found then
  if not newcomer then
    because = 'record_missing'
  elseif subscribers > 0 then
    because = 'others_listening'
  elseif ARGV[4] == '1' then
    because = 'record_erased'
  elseif uptime < known and not bootstrap then
    -- A server without data lost it when it started.
    because, elapsed = 'server_too_young', uptime
  end
else
  if tonumber(ns.generation) < remembered then
    minted, because = true, 'older_generation'
  elseif ns.run ~= run and not durable then
    because = 'server_restarted'
  elseif not is_continuation_of(ns.lineage, id, before) or not is_continuation_of(ARGV[14], id, before) then
    -- The record's contents may have come with the data.
    because = 'data_replaced'
  elseif not newcomer and (ns.generation ~= ARGV[5] or ns.stamp ~= ARGV[6]) and (tonumber(ns.generation) <= tonumber(ARGV[15])
    or tonumber(ns.generation) + known > now and quarantine_left(ns.closed_until, ns.closed_for, now) == 0 and not reopened) then
    -- Another generation, whose minter has not waited for our leases: it existed while the store still replied as of
    -- ours, or it is too young, there is no quarantine, and no operator has ended one. It may have come from elsewhere.
    because = 'data_replaced'
  elseif rolled_back then
    because = 'tokens_went_back'
  end
  -- Lapsed or not: it is unknown which renewals were lost.
  length = math.max(known, ns.ttls[1] and ns.ttls[1].ttl * 1000 or 0)
end
local began = because ~= ''

-- Continue a quarantine that is under way.
local left, closed_for, closed_because, informed = quarantine_left(ns.closed_until, ns.closed_for, now), ns.closed_for,
  ns.closed_because, ns.closed_informed
local was_left = left
local remembers_before = not newcomer and (ns.generation ~= ARGV[5] or ns.stamp ~= ARGV[6] or ARGV[16] ~= run)
if closed_because == 'server_too_young' and bootstrap and subscribers == 0 then
  -- Only the server's age was missing, and the operator vouches for it.
  left = 0
elseif left > 0 then
  local longest = closed_for
  if remembers_before and informed ~= '1' then
    -- The first instance with a memory replaces what a newcomer could only assume.
    longest = math.max(known, ns.ttls[1] and ns.ttls[1].ttl * 1000 or 0)
  elseif not newcomer or informed ~= '1' then
    -- A longer lease may have been granted before it began. An assumption must not overrule an instance with a memory.
    longest = math.max(known, closed_for)
  end
  -- It keeps its start: leases from before were granted before it.
  left, closed_for = math.max(left + longest - closed_for, 0), longest
  informed = (informed == '1' or remembers_before) and '1' or ''
end
if began and length - elapsed >= left then
  left, closed_for, closed_because, informed = length - elapsed, length, because, newcomer and '' or '1'
end
local shortened = left < was_left
local changed = minted or began or not found or ns.format < FORMAT or ns.lineage ~= id or left > 0 or ns.closed_until ~= '' and not reopened
if not reopened or began or minted then
  -- Otherwise the operator's word holds until there is another loss.
  ns.closed_until, ns.closed_for, ns.closed_because, ns.closed_informed = '', 0, '', ''
end
if left > 0 then
  ns.closed_until, ns.closed_for, ns.closed_because, ns.closed_informed = digits(now + left), closed_for, closed_because, informed
end

if minted then
  -- Minted like a token, so that a newcomer without a memory still exceeds every number that others remember.
  ns.generation, ns.stamp = digits(math.max(remembered + 1, now)), ARGV[9]
end
-- An instance that trusts the store to be durable must not hide a restart from those that do not.
if (began or not durable) and ns.run ~= run then
  ns.run, changed = run, true
end
ns.lineage = id
if high_water > ns.token_floor then
  ns.token_floor, changed = high_water, true
end
if left == 0 and expire_ttls(ns.ttls, now) then
  changed = true
end
-- Most attaches find everything in order and write nothing: memory may be full.
if changed then
  redis.call('HSET', KEYS[1], 'format', digits(FORMAT), 'generation', ns.generation, 'stamp', ns.stamp, 'run', ns.run, 'lineage', id,
    'closed_until', ns.closed_until, 'closed_for', digits(ns.closed_for), 'closed_because', ns.closed_because,
    'closed_informed', ns.closed_informed, 'ttls', write_ttls(ns.ttls), 'token_floor', digits(ns.token_floor))
  if ns.legacy_ttl then
    -- Programs that know only the first format find the record unreadable and acquire nothing.
    redis.call('HSET', KEYS[1], 'max_ttl', '')
  end
end
return answer(ns, minted, rolled_back, began, shortened)
