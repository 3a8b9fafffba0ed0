"""What Redis itself does in one step, in Lua; times are the server's."""

from __future__ import annotations

# A token bucket: hash of `tokens` and `at`, microseconds. Gives up to `want` whole tokens, and says in how many
# milliseconds there will be one more.
# KEYS: bucket. ARGV: rate a second, burst, want. Returns {given, wait_ms}.
TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local rate, burst, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local kept = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(kept[1]), tonumber(kept[2])
if tokens == nil or at == nil then
  tokens = burst
else
  tokens = math.min(burst, tokens + math.max(0, now - at) * rate / 1000000)
end
local given = math.min(want, math.floor(tokens))
tokens = tokens - given
redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', tokens), 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(burst / rate * 1000) + 1000))
return {given, math.ceil(math.max(0, 1 - tokens) / rate * 1000)}
"""

# Slots in use: a hash of holder to "count:until", milliseconds. A holder says how many it has, absolutely, so that
# neither a lost message nor a restart of Redis leaves a wrong count behind; one that has died is forgotten when its
# lease ends.
# KEYS: slots. ARGV: holder, limit, held now, want, lease in milliseconds. Returns how many are given.
HOLD = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local others = 0
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i] ~= ARGV[1] then
    local count, till = string.match(all[i + 1], '^(%d+):(%d+)$')
    if count == nil or tonumber(till) <= now then
      redis.call('HDEL', KEYS[1], all[i])
    else
      others = others + tonumber(count)
    end
  end
end
local held, lease = tonumber(ARGV[3]), tonumber(ARGV[5])
local given = math.min(tonumber(ARGV[4]), math.max(0, tonumber(ARGV[2]) - others - held))
held = held + given
if held > 0 then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%d:%.0f', held, now + lease))
  redis.call('PEXPIRE', KEYS[1], 2 * lease)
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return given
"""

# The answer to a request that may come again: a hash of `digest` (of what was asked), `state`, `owner`, `until` and,
# once it is there, `answer`. Its tenant's bytes are counted by the minute, so that they run out with the answers.
# KEYS: record, then the tenant's counters, the present minute first. ARGV: digest, owner, lease in milliseconds,
# how long a record is kept, bytes of a record, bytes that a tenant may have.
# Returns {state} or {state, value}: NEW, RUNNING (milliseconds that the lease lasts), DONE (the answer), LARGE, LOST,
# OTHER, FULL.
RESERVE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = redis.call('HMGET', KEYS[1], 'digest', 'state', 'until')
if kept[1] then
  if kept[1] ~= ARGV[1] then
    return {'OTHER'}
  end
  if kept[2] == 'RUNNING' then
    local left = tonumber(kept[3]) - now
    if left > 0 then
      return {'RUNNING', left}
    end
    return {'LOST'}
  end
  if kept[2] == 'DONE' then
    return {'DONE', redis.call('HGET', KEYS[1], 'answer')}
  end
  return {kept[2]}
end
local total = 0
for i = 2, #KEYS do
  total = total + tonumber(redis.call('GET', KEYS[i]) or '0')
end
if total + tonumber(ARGV[5]) > tonumber(ARGV[6]) then
  return {'FULL'}
end
redis.call('INCRBY', KEYS[2], ARGV[5])
redis.call('PEXPIRE', KEYS[2], 2 * tonumber(ARGV[4]))
redis.call('HSET', KEYS[1], 'digest', ARGV[1], 'state', 'RUNNING', 'owner', ARGV[2], 'until',
  string.format('%.0f', now + tonumber(ARGV[3])))
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[3]) + tonumber(ARGV[4]))
return {'NEW'}
"""

# Ends what RESERVE began, if it is still the owner's: forgets the record, or keeps its answer.
# KEYS: as RESERVE's. ARGV: owner, state ('' to forget), answer, how long it is kept, bytes that a tenant may have.
# Returns the state that it is in now.
FINISH = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
  return 'GONE'
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
  return ''
end
local state, size = ARGV[2], string.len(ARGV[3])
if state == 'DONE' then
  local total = 0
  for i = 2, #KEYS do
    total = total + tonumber(redis.call('GET', KEYS[i]) or '0')
  end
  if total + size > tonumber(ARGV[5]) then
    state = 'LARGE'
  else
    redis.call('INCRBY', KEYS[2], size)
    redis.call('PEXPIRE', KEYS[2], 2 * tonumber(ARGV[4]))
    redis.call('HSET', KEYS[1], 'answer', ARGV[3])
  end
end
redis.call('HSET', KEYS[1], 'state', state)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return state
"""
