-- The autoscalers' log: leader's lease, actions in progress, pods wanted, expected arrivals. Every
-- write carries the lease's fencing token, so an autoscaler that lost the lease can begin no action.

local MAX_HISTORY = 100
local EXPECTED_TTL_MS = 60000

-- {holder, token, until, ttl} while the lease is held, else {}. A clock set back would prolong a
-- lease, so one with more time left than its ttl is invalid.
local function leader()
  local last = redis.call('HMGET', key('leader'), 'holder', 'token', 'until', 'ttl')
  local left_ms = (tonumber(last[3] or 0) or 0) - now
  return left_ms > 0 and left_ms <= (tonumber(last[4] or 0) or 0) and last or {}
end

local function is_leader(token) return leader()[2] == tostring(token) end

-- loading, placement: the autoscaler's loading policy and planner; absent from older versions.
function op.lead(holder, ttl_ms, loading, placement)
  local current = leader()
  if current[1] and current[1] ~= holder then return {'held', current[1]} end
  local token = tonumber(current[2]) or next_fence()
  redis.call('HSET', key('leader'), 'holder', holder, 'token', token, 'until', now + ttl_ms,
    'ttl', ttl_ms, 'loading', loading or '', 'placement', placement or '')
  return {'ok', token}
end

-- The loading policy of the autoscaler that leads; empty if none does, or it is of an older version.
function op.loading()
  return leader()[1] and redis.call('HGET', key('leader'), 'loading') or ''
end

-- Its planner of placements, likewise; `off` if it places nothing.
function op.planner()
  return leader()[1] and redis.call('HGET', key('leader'), 'placement') or ''
end

function op.resign(token)
  if is_leader(token) then redis.call('DEL', key('leader')) end
  return true
end

local function log_action(subject, record)
  if redis.call('HEXISTS', key('models'), subject) == 1 then
    redis.call('HSET', key('acted'), subject, record)
  end
  redis.call('LPUSH', key('history'), record)
  redis.call('LTRIM', key('history'), 0, MAX_HISTORY - 1)
end

-- Record an action before it is carried out, so that the next leader does not repeat it.
function op.intend(token, id, ttl_ms, subject, record)
  if not is_leader(token) then return 'fenced' end
  local known = redis.call('HGET', key('intents'), id)
  if known and cjson.decode(known)[1] > now then return 'busy' end
  redis.call('HSET', key('intents'), id, cjson.encode({now + ttl_ms, record}))
  log_action(subject, record)
  return 'ok'
end

-- An action has ended: its outcome replaces the intent, and in the history the record of its start,
-- which older versions do not send. Needs no lease, since the action has happened.
function op.ended(id, subject, record, begun)
  redis.call('HDEL', key('intents'), id)
  local position = begun and redis.call('LPOS', key('history'), begun)
  if position then redis.call('LSET', key('history'), position, record) end
  if redis.call('HEXISTS', key('acted'), subject) == 1 then
    redis.call('HSET', key('acted'), subject, record)
  end
  return true
end

function op.scale(token, wanted, subject, record)
  if not is_leader(token) then return 'fenced' end
  if redis.call('GET', key('wanted')) == wanted then return 'unchanged' end
  redis.call('SET', key('wanted'), wanted)
  log_action(subject, record)
  change('wanted', wanted)
  return 'ok'
end

-- Which models share which accelerators. An empty subject: a step towards the recorded plan.
function op.place(token, placement, subject, record)
  if not is_leader(token) then return 'fenced' end
  if redis.call('GET', key('placement')) == placement then return 'unchanged' end
  redis.call('SET', key('placement'), placement)
  if subject ~= '' then log_action(subject, record) end
  change('placement', placement)
  return 'ok'
end

-- Whether a pod has a place: registered with it, or about to register again (until `hold`).
local function has_place(pod, place, hold_until)
  if tonumber(hold_until) > now then return true end
  local info = is_alive(pod) and redis.call('HGET', key('pod:' .. pod), 'info')
  return info and cjson.decode(info).place == place or false
end

-- Take an open place of the plan on an accelerator, or keep the one that the pod has; returns the
-- place as JSON, or false. It is the pod's for `hold_ms`, then while it is registered with it.
function op.take_place(pod, accelerator, hold_ms)
  local plan = redis.call('GET', key('placement'))
  local holders, places, open, own = {}, {}, nil, nil
  for _, place in ipairs(plan and cjson.decode(plan).pods or {}) do places[place.name] = place end
  local stored = redis.call('HGETALL', key('places'))
  for index = 1, #stored, 2 do
    local name, holder = stored[index], cjson.decode(stored[index + 1])
    if not places[name] or not has_place(holder[1], name, holder[2]) then
      redis.call('HDEL', key('places'), name)
    else
      holders[name] = holder[1]
      local is_here = places[name].replica.accelerator == accelerator
      if holder[1] == pod and is_here then own = name end
    end
  end
  for name, place in pairs(places) do
    local is_here = place.replica.accelerator == accelerator
    if is_here and not holders[name] and (not open or place.since_s < places[open].since_s
        or (place.since_s == places[open].since_s and name < open)) then
      open = name
    end
  end
  local taken = own or open
  if not taken then return false end
  redis.call('HSET', key('places'), taken, cjson.encode({pod, now + hold_ms}))
  return cjson.encode(places[taken])
end

-- Expected arrivals, for gateways only.
function op.expect(token, rates)
  if not is_leader(token) then return 'fenced' end
  redis.call('SET', key('expected'), rates, 'PX', EXPECTED_TTL_MS)
  unshared[#unshared + 1] = {'expected', rates}
  return 'ok'
end

-- The number of pods that other scalers are advised to set, again every few seconds.
function op.advise(token, advice)
  if not is_leader(token) then return 'fenced' end
  redis.call('SET', key('advice'), advice)
  return 'ok'
end

-- What other scalers ask for: the advice, queued requests, expected arrivals, and when this was so.
function op.demand()
  return {or_false(redis.call('GET', key('advice'))), op.waiting(),
    or_false(redis.call('GET', key('expected'))), now}
end

-- What every tick needs: actions in progress, and the pods wanted.
function op.under_way()
  local intents = {}
  local all = redis.call('HGETALL', key('intents'))
  for index = 1, #all, 2 do
    local intent = cjson.decode(all[index + 1])
    if intent[1] <= now then
      redis.pcall('HDEL', key('intents'), all[index])
    else
      intents[#intents + 1] = intent[2]
    end
  end
  return {intents, or_false(redis.call('GET', key('wanted')))}
end

function op.plans()
  return {leader(), op.under_way(), redis.call('HGETALL', key('acted')),
    redis.call('LRANGE', key('history'), 0, -1), now}
end
