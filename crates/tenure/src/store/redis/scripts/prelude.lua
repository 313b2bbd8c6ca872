-- Prepended to every script. Times are microseconds of the server's clock. All numbers are integers below 2^53, which a
-- Lua number holds exactly.

-- The longest ttl allowed, whatever a record contains.
local LONGEST = 86400000000

-- The format of the namespace record. Programs that know only lower formats acquire nothing.
local FORMAT = 2

-- Replication's id for "no history".
local NO_HISTORY = '0000000000000000000000000000000000000000'

-- How far ahead of the server's clock a token may be and still count for other leases than its own.
local FURTHEST_AHEAD = 366 * 86400000000

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Lua's own tostring would write 1.7e+15.
local function digits(number)
  return string.format('%.0f', number)
end

-- Sends a hint. A client without permission to publish can still hold leases.
local function announce(channel, text)
  redis.pcall('PUBLISH', channel, text)
end

-- Adds an instance to the index of its group until its heartbeat expires. Removes the instances whose heartbeats have
-- expired, so that the index does not grow with dead instances.
local function index_instance(index, instance, ttl)
  local now = math.floor(clock() / 1000)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
  redis.call('ZADD', index, now + ttl, instance)
end

-- Writes a heartbeat, and announces the instance if it was not alive before. The heartbeat of a candidate is the time
-- in milliseconds, that of an instance of the fleet is 1. The first write is PEXPIRE, which works when memory is full
-- and lets the other writes through.
local function beat(heartbeat, said, ttl, record, timed, joined, channel)
  local joins = redis.call('PEXPIRE', heartbeat, ttl) == 0
  redis.call('SET', heartbeat, timed == '1' and digits(math.floor(clock() / 1000)) or '1', 'PX', ttl)
  redis.call('SET', said, record, 'PX', ttl)
  if joins then
    announce(channel, joined)
  end
end

-- Records are checked when they are read, before anything is written: another program may have changed them, and a
-- script that fails half-way has done half of its work.
local function corrupt(key)
  error('CORRUPT ' .. key)
end

-- Parses a whole number written as digits.
local function whole(key, text)
  local number = text and #text <= 16 and string.match(text, '^%d+$') and tonumber(text)
  if not number or number > 9007199254740991 then
    corrupt(key)
  end
  return number
end

-- The same, or empty.
local function optional(key, text)
  if text ~= '' then
    whole(key, text)
  end
end

local ENDINGS = {silently = true, released = true, handed_over = true, revoked = true, taken_over = true}

-- Reads the record of the last term, which outlives the lease. An empty text means that there is no value.
local function read_term(key)
  local f = redis.call('HMGET', key, 'token', 'holder', 'nonce', 'since', 'ended', 'wait_out_until', 'progress', 'asked',
    'ending', 'deposed', 'previous_token', 'previous_holder', 'previous_ended', 'idled', 'ttl')
  local fields = 0
  for i = 1, 13 do
    fields = fields + (f[i] and 1 or 0)
  end
  if fields == 0 then
    return nil
  end
  if fields < 13 or not ENDINGS[f[5]] or (f[11] ~= '' and not ENDINGS[f[13]]) then
    corrupt(key)
  end
  whole(key, f[1])
  whole(key, f[4])
  whole(key, f[7])
  optional(key, f[6])
  optional(key, f[10])
  optional(key, f[11])
  return {
    token = f[1], holder = f[2], nonce = f[3], since = f[4], ended = f[5], wait_out_until = f[6], progress = f[7],
    asked = f[8], ending = f[9], deposed = f[10], previous_token = f[11], previous_holder = f[12], previous_ended = f[13],
    -- Whether it was renewed without progress since the last. Until then a lack of progress is not established.
    idled = f[14] == '1',
    -- The class of its ttl, in milliseconds. Records of the first format have none.
    ttl = f[15] and math.min(whole(key, f[15]), LONGEST / 1000) or LONGEST / 1000,
  }
end

-- Reads the ttls that can still be relied on. There is one class for each ttl in use: the time after which none of its
-- leases granted or renewed until now can be relied on, and the number of these leases if it is known. `ledger/ttls.rs`
-- explains why. The record has ` <ttl in milliseconds>:<until>:<leases>` for each class, the longest first.
local function read_ttls(text)
  local classes = {}
  for ttl, ends, leases in string.gmatch(text, ' (%d+):(%d+):(%d*)') do
    classes[#classes + 1] = {ttl = tonumber(ttl), ends = tonumber(ends), leases = tonumber(leases)}
  end
  return classes
end

local function write_ttls(classes)
  local parts = {}
  for at, class in ipairs(classes) do
    parts[at] = ' ' .. digits(class.ttl) .. ':' .. digits(class.ends) .. ':' .. (class.leases and digits(class.leases) or '')
  end
  return table.concat(parts)
end

-- The longest ttl that can be relied on, in microseconds.
local function longest_ttl(classes, now)
  for _, class in ipairs(classes) do
    if class.ends > now then
      return class.ttl * 1000
    end
  end
  return 0
end

-- A class is extended by an eighth more than needed, so that not every renewal has to write it.
local function furthest_end(now, ttl)
  return now + ttl * 1000 + math.floor(ttl * 1000 / 8)
end

-- A ttl rounded up, by an eighth at most, so that few different ones remain.
local function coarse_ttl(ttl)
  local step = 1
  while step * 16 <= ttl do
    step = step * 2
  end
  return math.min(math.ceil(ttl / step) * step, LONGEST / 1000)
end

local function find_class(classes, ttl)
  for at, class in ipairs(classes) do
    if class.ttl == ttl then
      return at
    end
  end
end

-- Counts a granted or renewed lease of this ttl. `before` is the class in which it counts already, if any. Returns the
-- class in which it counts now, and whether anything has changed.
local function extend_ttl(classes, now, ttl, before)
  ttl = math.min(ttl, LONGEST / 1000)
  local granted = not (before and (before == ttl or before == coarse_ttl(ttl)))
  if not granted then
    ttl = before
  elseif not find_class(classes, ttl) and #classes >= 16 then
    ttl = coarse_ttl(ttl)
  end
  local at, changed = find_class(classes, ttl), granted
  if not at then
    at = 1
    while classes[at] and classes[at].ttl > ttl do
      at = at + 1
    end
    table.insert(classes, at, {ttl = ttl, ends = now, leases = nil})
  end
  local class = classes[at]
  if class.ends <= now then
    -- All leases counted here have expired.
    class.leases = granted and 0 or nil
  end
  if granted and class.leases then
    class.leases = class.leases + 1
  end
  if class.ends < now + ttl * 1000 or class.ends > furthest_end(now, ttl) then
    class.ends, changed = furthest_end(now, ttl), true
  end
  return ttl, changed
end

-- Removes a lease of this class whose holder has released it. Returns whether anything has changed.
local function release_ttl(classes, ttl)
  local at = find_class(classes, ttl)
  if not at or not classes[at].leases then
    return false
  end
  classes[at].leases = math.max(classes[at].leases - 1, 0)
  if classes[at].leases == 0 then
    table.remove(classes, at)
  end
  return true
end

-- Removes the classes that have lapsed. Returns whether anything has changed.
local function expire_ttls(classes, now)
  local changed = false
  for at = #classes, 1, -1 do
    local furthest = furthest_end(now, classes[at].ttl)
    if classes[at].ends > furthest then
      classes[at].ends, changed = furthest, true
    end
    if classes[at].ends <= now then
      table.remove(classes, at)
      changed = true
    end
  end
  return changed
end

-- The time left of a quarantine. It never exceeds its length, whatever the server's clock did meanwhile.
local function quarantine_left(ends, length, now)
  if ends == '' then
    return 0
  end
  return math.max(math.min(ends - now, length), 0)
end

-- The namespace record; nil when there is none.
local function read_namespace(key)
  local f = redis.call('HMGET', key, 'generation', 'stamp', 'run', 'closed_until', 'ttls', 'token_floor', 'format', 'lineage',
    'closed_for', 'closed_because', 'closed_informed', 'max_ttl')
  if not (f[1] or f[2] or f[3] or f[4] or f[5] or f[6]) then
    return nil
  end
  local format = f[7] and whole(key, f[7]) or 1
  if format > FORMAT then
    error('NEWER ' .. digits(format) .. ' ' .. key)
  end
  if not (f[2] and string.match(f[2], '^%d+$') and f[3] and f[4]) then
    corrupt(key)
  end
  whole(key, f[1])
  optional(key, f[4])
  local ns = {generation = f[1], stamp = f[2], run = f[3], closed_until = f[4], token_floor = whole(key, f[6]), format = format}
  if format == 1 then
    -- The first format records how long leases may be, but not how many there are.
    ns.legacy_ttl = math.min(whole(key, f[12]), LONGEST)
    ns.lineage, ns.ttls, ns.closed_for, ns.closed_because, ns.closed_informed = '', {}, ns.legacy_ttl, 'server_restarted', ''
    return ns
  end
  if not (f[5] and f[8] and f[10] and f[11]) or string.gsub(f[5], ' %d+:%d+:%d*', '') ~= '' then
    corrupt(key)
  end
  ns.ttls, ns.lineage, ns.closed_because, ns.closed_informed = read_ttls(f[5]), f[8], f[10], f[11]
  ns.closed_for = math.min(whole(key, f[9]), LONGEST)
  return ns
end

-- The longest ttl that can be relied on. During a quarantine it covers what the quarantine waits for.
local function namespace_ttl(ns, now)
  local longest = longest_ttl(ns.ttls, now)
  if quarantine_left(ns.closed_until, ns.closed_for, now) > 0 then
    longest = math.max(longest, ns.closed_for)
  end
  return longest
end

-- Announces the longest ttl to the instances that remember it.
local function announce_longest(channel, ttl, now)
  announce(channel, 'longest_ttl ' .. digits(ttl / 1000) .. ' ' .. digits(now))
end

-- Removes a term from its class: its holder relies on it no longer. An unaccepted offer was never counted.
local function forget_ttl(key, term, channel)
  local f = redis.call('HMGET', key, 'ttls', 'closed_until', 'closed_for')
  if not f[1] or term.nonce == '' then
    return
  end
  local now = clock()
  local ns = {ttls = read_ttls(f[1]), closed_until = f[2] or '', closed_for = tonumber(f[3]) or 0}
  local before = namespace_ttl(ns, now)
  if release_ttl(ns.ttls, term.ttl) then
    redis.call('HSET', key, 'ttls', write_ttls(ns.ttls))
    local longest = namespace_ttl(ns, now)
    if longest ~= before then
      announce_longest(channel, longest, now)
    end
  end
end

-- The history of the server's data, as replication identifies it: the present id, and the id of the data it began with.
-- The id also changes with the data intact, when the first replica connects or the backlog is freed; then there is no
-- id before.
local function read_lineage()
  local info = redis.call('INFO', 'replication')
  -- Plain searches: patterns would take longer than all other reads together.
  local _, ends = string.find(info, 'master_replid:', 1, true)
  local id = ends and string.sub(info, ends + 1, ends + 40) or ''
  _, ends = string.find(info, 'master_replid2:', ends or 1, true)
  local before = ends and string.sub(info, ends + 1, ends + 40) or ''
  if before == NO_HISTORY then
    before = ''
  end
  return id, before
end

-- The same data if the id is equal, or the history before is unknown or the recorded one. `recorded` may be only the
-- beginning of an id.
local function is_continuation_of(recorded, id, before)
  id, before = string.sub(id, 1, #recorded), string.sub(before, 1, #recorded)
  return recorded == '' or id == '' or id == recorded or before == '' or before == recorded
end

-- The floor for tokens after this one. An implausible token counts for its own lease alone. But the token directly
-- after the floor is always accepted, since a clock that was ahead may have been set back.
local function raised_floor(floor, token, now)
  if token > floor and (token <= now + FURTHEST_AHEAD or token == floor + 1) then
    return token
  end
  return floor
end

-- Whether a term was granted under this token, which a revocation may have raised since.
local function was_granted_under(term, token)
  local was_raised = term.ended == 'revoked' or term.ended == 'released'
  return term.token == token or was_raised and token ~= '' and term.deposed == token
end

-- Why this holder and token are not the current term; nil when they are. Both must be equal: another instance could
-- have the same token, and an earlier term the same holder.
local function refusal(lease_holder, term, holder, token)
  if term and term.holder == holder and term.ended == 'revoked' and was_granted_under(term, token) then
    return {'refused', 'revoked'}
  end
  if not lease_holder then
    return {'refused', term and 'missing' or 'store_reset'}
  end
  if term and lease_holder == holder and term.holder == holder then
    if term.ended ~= 'silently' then
      -- Another program has written the holder's name back: that revives nothing.
      return {'refused', 'missing'}
    end
    if term.token == token then
      return nil
    end
    return {'refused', 'taken', lease_holder}
  end
  if not term and lease_holder == holder then
    return {'refused', 'store_reset'}
  end
  if term and term.deposed == token then
    return {'refused', 'stalled'}
  end
  return {'refused', 'taken', lease_holder}
end

-- As above, and the holder must have accepted the term: no instance may use an offer before it is accepted.
local function refusal_unless_accepted(lease_holder, term, holder, token)
  local refused = refusal(lease_holder, term, holder, token)
  if not refused and term.nonce == '' then
    return {'refused', 'store_reset'}
  end
  return refused
end

-- The reply for a lease that another instance holds. A remaining time of -1 means that the lease never expires, an idle
-- time of -1 that it is unknown.
local function held(key, lease_holder, term, now, max_ttl)
  local left = redis.call('PTTL', key)
  local own = term and term.holder == lease_holder
  if left >= 0 then
    left = math.min(left * 1000, own and term.ttl * 1000 or LONGEST)
  end
  if own then
    return {'held', lease_holder, term.token, left, math.max(now - term.progress, 0), max_ttl, now}
  end
  return {'held', lease_holder, '', left, -1, max_ttl, now}
end
