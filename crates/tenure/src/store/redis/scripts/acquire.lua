-- Grants the lease if it is unheld, if this very claim already has it, if it was handed over to this holder, if its
-- last term is one that this holder's process has ended, or if its holder has made no progress for too long.
--
-- KEYS  1 lease, 2 term record, 3 namespace record
-- ARGV  1 generation attached, 2 its stamp, 3 holder, 4 nonce, 5 ttl in milliseconds, 6 ended term or '',
--       7 term to take over or '', 8 time without progress that allows it, 9 channel, 10 history of the data attached
local holder, nonce, ttl = ARGV[3], ARGV[4], tonumber(ARGV[5])
local ns = read_namespace(KEYS[3])
if not ns or ns.format < FORMAT or ns.generation ~= ARGV[1] or ns.stamp ~= ARGV[2] then
  return {'not_entered'}
end
-- The data may have been replaced since this connection attached: connections survive that.
local id, before = read_lineage()
-- The record's contents may have come with the data.
if not is_continuation_of(ns.lineage, id, before) or not is_continuation_of(ARGV[10], id, before) then
  return {'not_entered'}
end
local now = clock()
local floor = ns.token_floor
local lease_holder = redis.call('GET', KEYS[1])
local term = read_term(KEYS[2])

-- Corrections are written if memory allows. A server clock that is set back must neither lengthen a quarantine nor
-- restart it.
if ns.closed_until ~= '' then
  local left = quarantine_left(ns.closed_until, ns.closed_for, now)
  if left > 0 then
    if ns.closed_until - now > left then
      redis.pcall('HSET', KEYS[3], 'closed_until', digits(now + left))
    end
    return {'quarantined', left, ns.closed_because}
  end
  ns.closed_until = ''
  -- One without a length was ended by an operator, whose word is kept.
  if ns.closed_for > 0 then
    redis.pcall('HSET', KEYS[3], 'closed_until', '')
  end
end
if expire_ttls(ns.ttls, now) then
  redis.pcall('HSET', KEYS[3], 'ttls', write_ttls(ns.ttls))
end
local longest = longest_ttl(ns.ttls, now)

if lease_holder and term and term.holder == lease_holder then
  -- A term cannot have more than its ttl left, nor progress from the future, unless the server's clock was set back.
  -- Leases of foreign programs are not changed.
  if redis.call('PTTL', KEYS[1]) > term.ttl then
    redis.call('PEXPIRE', KEYS[1], term.ttl)
  end
  local furthest = now + math.max(longest, term.ttl * 1000)
  if tonumber(term.progress) > furthest then
    term.progress = digits(furthest)
    redis.call('HSET', KEYS[2], 'progress', term.progress)
  end
end

-- The previous term, and how it ended as far as we know.
local ended, deposed, wait_out_until = term and term.ended, '', term and term.wait_out_until or ''
local new_term, taking_over, replaced = true, false, false
if lease_holder then
  local own = term and lease_holder == holder and term.holder == holder
  local stale = term and term.idled and ARGV[7] == term.token and term.holder == lease_holder
    and math.max(now - term.progress, 0) >= tonumber(ARGV[8])
  if stale then
    taking_over, ended, deposed = true, 'taken_over', term.token
    -- Whatever became of the expiry, the holder relies on one ttl at most.
    local left = redis.call('PTTL', KEYS[1])
    local until_then = now + (left >= 0 and math.min(left, term.ttl) or term.ttl) * 1000
    wait_out_until = digits(math.max(tonumber(wait_out_until) or 0, until_then))
  elseif own and was_granted_under(term, ARGV[6]) then
    -- Its process has ended that term. This is a new one, even if a store that went back in time shows it as an offer
    -- that was not accepted.
    ended = 'released'
    replaced = term.nonce ~= '' and redis.call('PTTL', KEYS[1]) >= 0
  elseif own and term.ended == 'silently' and (term.nonce == nonce or term.nonce == '') then
    -- The same claim again, or an accepted offer: the same term, for a whole ttl from now.
    new_term = false
  else
    return held(KEYS[1], lease_holder, term, now, longest)
  end
elseif term then
  if term.nonce == nonce then
    return {'term_over'}
  end
  if term.ended == 'taken_over' then
    deposed = term.deposed
  end
end

local token, written_now = term and term.token, digits(now)
local previous = {false, false, false}
if new_term then
  local minted = math.max(term and tonumber(term.token) or 0, floor) + 1
  minted = math.max(minted, now)
  if minted > 9007199254740991 then
    return {'tokens_exhausted'}
  end
  token = minted == now and written_now or digits(minted)
  if term then
    previous = {term.token, term.holder, ended}
  end
elseif term.previous_token ~= '' then
  previous = {term.previous_token, term.previous_holder, term.previous_ended}
end

-- From here on everything is written. The ttl is relied on from now.
local class = extend_ttl(ns.ttls, now, ttl, not new_term and term.nonce ~= '' and term.ttl or nil)
local max_ttl = longest_ttl(ns.ttls, now)
if replaced then
  release_ttl(ns.ttls, term.ttl)
end
local longest_left = longest_ttl(ns.ttls, now)
if not lease_holder then
  if not redis.call('SET', KEYS[1], holder, 'NX', 'PX', ttl) then
    return redis.error_reply('ERR the lease key changed inside a script')
  end
elseif taking_over then
  redis.call('SET', KEYS[1], holder, 'XX', 'PX', ttl)
else
  redis.call('PEXPIRE', KEYS[1], ttl)
end

local wait_out = 0
if wait_out_until ~= '' then
  -- Never later than the longest ttl from now, whatever the server's clock did meanwhile.
  wait_out = math.max(math.min(wait_out_until - now, max_ttl), 0)
  wait_out_until = wait_out > 0 and digits(now + wait_out) or ''
end
local progress = new_term and written_now or term.progress
if wait_out > 0 and tonumber(progress) < now + wait_out then
  progress = digits(now + wait_out)
end
if new_term then
  redis.call('HSET', KEYS[2], 'token', token, 'holder', holder, 'nonce', nonce, 'ttl', class, 'since', written_now,
    'ended', 'silently', 'wait_out_until', wait_out_until, 'progress', progress, 'idled', '', 'asked', '', 'ending', '',
    'deposed', deposed, 'previous_token', previous[1] or '', 'previous_holder', previous[2] or '',
    'previous_ended', previous[3] or '')
else
  redis.call('HSET', KEYS[2], 'nonce', nonce, 'ttl', class, 'wait_out_until', wait_out_until, 'progress', progress)
end
local raised = raised_floor(floor, tonumber(token), now)
redis.call('HSET', KEYS[3], 'ttls', write_ttls(ns.ttls), 'token_floor', raised == now and written_now or digits(raised))
if ns.lineage ~= id then
  redis.call('HSET', KEYS[3], 'lineage', id)
end
if max_ttl > longest then
  announce_longest(ARGV[9], max_ttl, now)
end
if longest_left ~= max_ttl then
  announce_longest(ARGV[9], longest_left, now)
end
return {'granted', token, now, max_ttl, wait_out, previous[1], previous[2], previous[3]}
