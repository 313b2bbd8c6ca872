-- Entering: is this still the store that we knew?
--
-- KEYS  1 namespace record
-- ARGV  1 server run, 2 uptime, 3 how many listen,
--       4 remembered generation ('' for a newcomer), 5 its stamp, 6 highest token remembered,
--       7 longest ttl known, 8 stamp for a new generation, 9 '1' to bootstrap, 10 '1' when a restart loses nothing,
--       11 channel
local run, uptime, listeners = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local newcomer = ARGV[4] == ''
local remembered, high_water = tonumber(ARGV[4]) or 0, tonumber(ARGV[6])
local now = clock()

local found = read_namespace(KEYS[1])
local generation, stamp, known, floor, already = '', '', 0, 0, 0
if found then
  generation, stamp, known, floor = found.generation, found.stamp, found.max_ttl, found.token_floor
end
local max_ttl = math.max(known, tonumber(ARGV[7]))
if found and found.closed_until ~= '' then
  -- Never longer than the longest ttl, whatever the server's clock did meanwhile.
  already = math.min(math.max(found.closed_until - now, 0), known)
  if already > 0 then
    -- A lease longer than any known so far may have been granted before the namespace was closed.
    already = already + (max_ttl - known)
  end
end

local rolled_back = found and not newcomer and generation == ARGV[4] and stamp == ARGV[5] and floor < high_water
local minted, closing, closed_for = false, '', 0
if not found then
  minted = true
  if not newcomer then
    closing, closed_for = 'record_missing', max_ttl
  elseif ARGV[9] == '1' then
    closed_for = 0
  elseif listeners > 0 then
    closing, closed_for = 'others_listening', max_ttl
  elseif uptime < max_ttl then
    closing, closed_for = 'server_too_young', max_ttl - uptime
  end
elseif tonumber(generation) < remembered then
  minted, closing, closed_for = true, 'older_generation', max_ttl
elseif ARGV[10] ~= '1' then
  if found.run ~= run then
    closing, closed_for = 'server_restarted', max_ttl
  elseif rolled_back then
    closing, closed_for = 'tokens_went_back', max_ttl
  end
end
if minted then
  -- Minted like a token, so that a newcomer without memory is still above whoever remembers.
  generation, stamp = digits(math.max(remembered + 1, now)), ARGV[8]
end

closed_for = math.max(closed_for, already)
floor = math.max(floor, high_water)
-- Most entries find everything as it should be, and write nothing: there may be no room.
if minted or closed_for > 0 or found.closed_until ~= '' or found.run ~= run or found.max_ttl ~= max_ttl
  or found.token_floor ~= floor then
  redis.call('HSET', KEYS[1], 'generation', generation, 'stamp', stamp, 'run', run, 'closed_until',
    closed_for > 0 and digits(now + closed_for) or '', 'max_ttl', digits(max_ttl), 'token_floor', digits(floor))
end
-- A new generation is announced: whoever knows of longer leases than we do must come and make the closing longer.
-- Otherwise the empty message, which nobody heeds, shows whether announcing is possible at all.
local said = redis.pcall('PUBLISH', ARGV[11], minted and ('generation ' .. generation .. ' ' .. stamp) or '')
local silent = type(said) == 'table' and said.err or ''
return {generation, stamp, minted and 1 or 0, max_ttl, floor, rolled_back and 1 or 0, closed_for, closing, silent}
