-- Who plans, what was begun, how many pods are wanted. Autoscalers hold a lease in turn; its fencing
-- token goes with everything they write, so one that lost it can begin nothing more.

local MOST_REMEMBERED = 100

-- {holder, token, until, ttl} while somebody leads, else {}. A clock that went back would make a
-- lease last for as long as it went back by, so none is believed that has more left than it was for.
local function leader()
  local last = redis.call('HMGET', key('leader'), 'holder', 'token', 'until', 'ttl')
  local left_ms = (tonumber(last[3] or 0) or 0) - now
  return left_ms > 0 and left_ms <= (tonumber(last[4] or 0) or 0) and last or {}
end

local function leads(token) return leader()[2] == tostring(token) end

function op.lead(holder, ttl_ms)
  local current = leader()
  if current[1] and current[1] ~= holder then return {'held', current[1]} end
  local token = tonumber(current[2]) or next_fence()
  redis.call('HSET', key('leader'), 'holder', holder, 'token', token, 'until', now + ttl_ms,
    'ttl', ttl_ms)
  return {'ok', token}
end

function op.resign(token)
  if leads(token) then redis.call('DEL', key('leader')) end
  return true
end

local function remember(subject, record)
  if redis.call('HEXISTS', key('models'), subject) == 1 then
    redis.call('HSET', key('acted'), subject, record)
  end
  redis.call('LPUSH', key('history'), record)
  redis.call('LTRIM', key('history'), 0, MOST_REMEMBERED - 1)
end

-- Write down what is about to be done, before it is done: whoever takes over does not do it again.
function op.intend(token, id, ttl_ms, subject, record)
  if not leads(token) then return 'fenced' end
  local known = redis.call('HGET', key('intents'), id)
  if known and cjson.decode(known)[1] > now then return 'busy' end
  redis.call('HSET', key('intents'), id, cjson.encode({now + ttl_ms, record}))
  remember(subject, record)
  return 'ok'
end

-- It is done, or failed; what became of it replaces what was intended. From anybody: it happened.
function op.ended(id, subject, record)
  redis.call('HDEL', key('intents'), id)
  if redis.call('HEXISTS', key('acted'), subject) == 1 then
    redis.call('HSET', key('acted'), subject, record)
  end
  return true
end

function op.scale(token, wanted, subject, record)
  if not leads(token) then return 'fenced' end
  if redis.call('GET', key('wanted')) == wanted then return 'unchanged' end
  redis.call('SET', key('wanted'), wanted)
  remember(subject, record)
  change('wanted', wanted)
  return 'ok'
end

-- What is needed at every plan: actions under way, and the wanted pods.
function op.under_way()
  local intents = {}
  local all = redis.call('HGETALL', key('intents'))
  for index = 1, #all, 2 do
    local intent = cjson.decode(all[index + 1])
    if intent[1] <= now then
      redis.call('HDEL', key('intents'), all[index])
    else
      intents[#intents + 1] = intent[2]
    end
  end
  return {intents, or_false(redis.call('GET', key('wanted')))}
end

function op.plans()
  return {leader(), op.under_way(), redis.call('HGETALL', key('acted')),
    redis.call('LRANGE', key('history'), 0, -1)}
end
