-- Put before every script. Times are microseconds of the server's clock; all numbers are integers below 2^53, which a
-- Lua number holds exactly.

-- The longest ttl there is, whatever a record says.
local LONGEST = 86400000000

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Lua's own tostring would write 1.7e+15.
local function digits(number)
  return string.format('%.0f', number)
end

-- A hint. Whoever may not publish can still hold leases.
local function announce(channel, text)
  redis.pcall('PUBLISH', channel, text)
end

-- Puts an instance into the index of its group until its heartbeat ends, and takes those out whose heartbeats have ended, so that it
-- does not grow with those who are gone.
local function list(index, instance, ttl)
  local now = math.floor(clock() / 1000)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
  redis.call('ZADD', index, now + ttl, instance)
end

-- Says that an instance is alive, and announces it when nobody knew. The heartbeat of a candidate is the time in milliseconds, that
-- of a member of the fleet is 1.
local function beat(heartbeat, said, ttl, record, timed, joined, channel)
  local joins = redis.call('EXISTS', heartbeat) == 0
  redis.call('SET', heartbeat, timed == '1' and digits(math.floor(clock() / 1000)) or '1', 'PX', ttl)
  redis.call('SET', said, record, 'PX', ttl)
  if joins then
    announce(channel, joined)
  end
end

-- Records are checked when they are read, before anything is written: an outsider may have changed them, and a script
-- that fails half-way has done half of its work.
local function corrupt(key)
  error('CORRUPT ' .. key)
end

-- A whole number that was written as digits.
local function whole(key, text)
  local number = text and #text <= 16 and string.match(text, '^%d+$') and tonumber(text)
  if not number or number > 9007199254740991 then
    corrupt(key)
  end
  return number
end

-- The same, or nothing.
local function optional(key, text)
  if text ~= '' then
    whole(key, text)
  end
end

local ENDINGS = {silently = true, released = true, handed_over = true, revoked = true, taken_over = true}

-- The record of the last term, which outlives the lease. Empty text stands for nothing.
local function read_term(key)
  local f = redis.call('HMGET', key, 'token', 'holder', 'nonce', 'since', 'ended', 'wait_out_until', 'progress', 'asked',
    'ending', 'deposed', 'previous_token', 'previous_holder', 'previous_ended', 'idled')
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
    -- Whether it was renewed without progress since the last: until then nobody knows that there is none.
    idled = f[14] == '1',
  }
end

-- The namespace record; nil when there is none.
local function read_namespace(key)
  local f = redis.call('HMGET', key, 'generation', 'stamp', 'run', 'closed_until', 'max_ttl', 'token_floor')
  if not (f[1] or f[2] or f[3] or f[4] or f[5] or f[6]) then
    return nil
  end
  if not (f[2] and string.match(f[2], '^%d+$') and f[3] and f[4]) then
    corrupt(key)
  end
  whole(key, f[1])
  optional(key, f[4])
  return {
    generation = f[1], stamp = f[2], run = f[3], closed_until = f[4],
    max_ttl = math.min(whole(key, f[5]), LONGEST), token_floor = whole(key, f[6]),
  }
end

-- Why this holder and token are not the current term; nil when they are. Both must be equal: a token alone could be
-- that of a stranger, a holder alone that of an earlier term.
local function refusal(lease_holder, term, holder, token)
  if term and term.holder == holder and term.token == token and term.ended == 'revoked' then
    return {'refused', 'revoked'}
  end
  if not lease_holder then
    return {'refused', term and 'missing' or 'store_reset'}
  end
  if term and lease_holder == holder and term.holder == holder then
    if term.ended ~= 'silently' then
      -- An outsider has written the holder's name back: that revives nothing.
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

-- As above, and the term was taken up by its holder: an offer that was not is nobody's to use.
local function refusal_unless_taken_up(lease_holder, term, holder, token)
  local refused = refusal(lease_holder, term, holder, token)
  if not refused and term.nonce == '' then
    return {'refused', 'store_reset'}
  end
  return refused
end

-- Somebody's lease, as seen by others. A remaining time of -1 stands for a lease without end, an idle time of -1 for
-- one that is not known.
local function held(key, lease_holder, term, now, max_ttl)
  local left = redis.call('PTTL', key)
  if left >= 0 then
    left = math.min(left * 1000, max_ttl)
  end
  if term and term.holder == lease_holder then
    return {'held', lease_holder, term.token, left, math.max(now - term.progress, 0), max_ttl}
  end
  return {'held', lease_holder, '', left, -1, max_ttl}
end
