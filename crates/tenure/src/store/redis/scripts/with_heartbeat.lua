-- Sends a heartbeat with a request about a lease: one command instead of three. `handle_request` is the request's own
-- script, whose keys and arguments come first. Its reply is returned whether or not the heartbeat succeeds.
--
-- KEYS  the last three: heartbeat, record that the instance publishes about itself, index
-- ARGV  the last six: as in heartbeat.lua, and the instance
local answer = handle_request()
local k, a = #KEYS, #ARGV
local function send_heartbeat()
  index_instance(KEYS[k], ARGV[a], tonumber(ARGV[a - 5]))
  beat(KEYS[k - 2], KEYS[k - 1], ARGV[a - 5], ARGV[a - 4], ARGV[a - 3], ARGV[a - 2], ARGV[a - 1])
end
local done, failure = pcall(send_heartbeat)
if done then
  return {answer, {'done'}}
end
return {answer, redis.error_reply(type(failure) == 'table' and failure.err or failure)}
