-- Load claims: at most one load of a model per pod, or in the whole pool, with a fencing token.
-- A claim that its pod has not started within its time is over, whether or not somebody swept it;
-- a started one lives as long as the pod's lease.

local function claim_of(model, pod)
  local text = redis.call('HGET', key('claims:' .. model), pod)
  if not text then return nil end
  local token, expiry = text:match('^(%d+):(%d+)$')
  expiry = tonumber(expiry)
  if expiry ~= 0 and expiry <= now then return nil end
  return tonumber(token), expiry
end

local function drop_claim(model, pod)
  redis.call('HDEL', key('claims:' .. model), pod)
  redis.call('ZREM', key('unstarted'), model .. '|' .. pod)
end

local function settle(pod, model)
  local tier, loading, _, bytes = residency(pod, model)
  if tier and loading ~= '-' then set_residency(pod, model, tier, '-', bytes) end
end

local function reap_claims()
  local late = redis.call('ZRANGEBYSCORE', key('unstarted'), '-inf', now)
  for _, member in ipairs(late) do
    local model, pod = member:match('^(.*)|([^|]*)$')
    drop_claim(model, pod)
    settle(pod, model)
  end
end

-- How many other pods that take requests hold the model on their device or are loading it.
local function copies_elsewhere(model, pod)
  local copies = 0
  for _, other in ipairs(redis.call('SMEMBERS', key('warm:' .. model))) do
    if other ~= pod and serving(other) then copies = copies + 1 end
  end
  for _, other in ipairs(redis.call('HKEYS', key('claims:' .. model))) do
    if other ~= pod and claim_of(model, other) and serving(other) then copies = copies + 1 end
  end
  return copies
end

local function make_claim(model, pod, claim_ms)
  local token = next_fence()
  local tier, _, _, bytes = residency(pod, model)
  tier = tier or 'remote'
  if tier == 'device' then tier = 'remote' end
  redis.call('HSET', key('claims:' .. model), pod, token .. ':' .. (now + claim_ms))
  redis.call('ZADD', key('unstarted'), now + claim_ms, model .. '|' .. pod)
  set_residency(pod, model, tier, tier, bytes or '0')
  return token, tier
end

function op.claim(pod, epoch, model, scope, claim_ms)
  if not current(pod, epoch) then return {'lost'} end
  reap_claims()
  local tier, loading = residency(pod, model)
  if tier == 'device' then return {'warm'} end
  if loading and loading ~= '-' then return {'loading'} end
  if scope == 'pool' and copies_elsewhere(model, pod) > 0 then return {'elsewhere'} end
  return {'ok', (make_claim(model, pod, claim_ms))}
end

function op.start(pod, epoch, model, token, source)
  if not current(pod, epoch) then return {'lost'} end
  if claim_of(model, pod) ~= token then return {'fenced'} end
  redis.call('HSET', key('claims:' .. model), pod, token .. ':0')
  redis.call('ZREM', key('unstarted'), model .. '|' .. pod)
  local _, loading, _, bytes = residency(pod, model)
  if loading ~= source then set_residency(pod, model, source, source, bytes or '0') end
  return {'ok'}
end

-- The first warm pod of a model's new generation ends the service of the previous one.
local function promote(name, model)
  if redis.call('HGET', key('keys'), name) ~= model then return end
  local changed = redis.call('HDEL', key('failures'), name)
    + redis.call('HDEL', key('previous'), name) + redis.call('HDEL', key('previous_keys'), name)
  if changed > 0 then publish_model(name) end
end

function op.finish(pod, epoch, model, token, bytes, name)
  if not current(pod, epoch) then return {'lost'} end
  if claim_of(model, pod) ~= token then return {'fenced'} end
  drop_claim(model, pod)
  set_residency(pod, model, 'device', '-', bytes)
  promote(name, model)
  return {'ok'}
end

function op.fail(pod, epoch, model, token, name, failure)
  if not current(pod, epoch) then return {'lost'} end
  if claim_of(model, pod) ~= token then return {'fenced'} end
  drop_claim(model, pod)
  settle(pod, model)
  if redis.call('HGET', key('keys'), name) == model then
    redis.call('HSET', key('failures'), name, failure)
    publish_model(name)
  end
  return {'ok'}
end

function op.tier(pod, epoch, model, tier, bytes)
  if not current(pod, epoch) then return {'lost'} end
  local token, expiry = claim_of(model, pod)
  if token and expiry ~= 0 and tier ~= 'device' then
    set_residency(pod, model, tier, tier, bytes)  -- a gateway asked for a load meanwhile
    return {'ok'}
  end
  drop_claim(model, pod)
  set_residency(pod, model, tier, '-', bytes)
  return {'ok'}
end
