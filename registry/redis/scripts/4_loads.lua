-- Load claims: at most one load of a model per pod, and in the pool as many as the claim allows, with
-- a fencing token. A claim expires if its pod does not start the load in time; a started one lasts as long as the
-- pod's lease.

function claim_of(model, pod)
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

-- The model stays in the tier that the load started from.
local function end_load(pod, model)
  local tier, loading, _, bytes = residency(pod, model)
  if tier and loading ~= '-' then set_residency(pod, model, tier, '-', bytes) end
end

local function expire_claims()
  local expired = redis.call('ZRANGEBYSCORE', key('unstarted'), '-inf', now)
  for _, member in ipairs(expired) do
    local model, pod = member:match('^(.*)|([^|]*)$')
    drop_claim(model, pod)
    end_load(pod, model)
  end
end

-- Number of other accepting pods that hold the model on their device or load it.
function copies_elsewhere(model, pod)
  local copies = 0
  for _, other in ipairs(redis.call('SMEMBERS', key('warm:' .. model))) do
    if other ~= pod and is_serving(other) then copies = copies + 1 end
  end
  for _, other in ipairs(redis.call('HKEYS', key('claims:' .. model))) do
    if other ~= pod and claim_of(model, other) and is_serving(other) then copies = copies + 1 end
  end
  return copies
end

function make_claim(model, pod, claim_ms)
  local token = next_fence()
  local tier, _, _, bytes = residency(pod, model)
  tier = tier or 'remote'
  if tier == 'device' then tier = 'remote' end
  redis.call('HSET', key('claims:' .. model), pod, token .. ':' .. (now + claim_ms))
  redis.call('ZADD', key('unstarted'), now + claim_ms, model .. '|' .. pod)
  set_residency(pod, model, tier, tier, bytes or '0')
  return token, tier
end

-- nil where the pod holds its lease and the claim, else the result to return.
local function check_claim(pod, epoch, model, token)
  if not holds_lease(pod, epoch) then return {'lost'} end
  if claim_of(model, pod) ~= token then return {'fenced'} end
end

local function record_failure(name, model, failure)
  if redis.call('HGET', key('keys'), name) == model then
    redis.call('HSET', key('failures'), name, failure)
    publish_model(name)
  end
end

-- copies: how many other pods may hold or load the model (-1: any number).
function op.claim(pod, epoch, model, copies, claim_ms)
  if not holds_lease(pod, epoch) then return {'lost'} end
  expire_claims()
  local tier, loading = residency(pod, model)
  if tier == 'device' then return {'warm'} end
  if loading and loading ~= '-' then return {'loading'} end
  if copies >= 0 and copies_elsewhere(model, pod) > copies then return {'elsewhere'} end
  return {'ok', (make_claim(model, pod, claim_ms))}
end

function op.start(pod, epoch, model, token, source)
  local refusal = check_claim(pod, epoch, model, token)
  if refusal then return refusal end
  redis.call('HSET', key('claims:' .. model), pod, token .. ':0')
  redis.call('ZREM', key('unstarted'), model .. '|' .. pod)
  local _, loading, _, bytes = residency(pod, model)
  if loading ~= source then set_residency(pod, model, source, source, bytes or '0') end
  return {'ok'}
end

-- The first warm pod of a model's new generation replaces the previous one.
local function promote(name, model)
  if redis.call('HGET', key('keys'), name) ~= model then return end
  local removed = redis.call('HDEL', key('failures'), name) + drop_previous(name)
  if removed > 0 then publish_model(name) end
end

function op.finish(pod, epoch, model, token, bytes, name)
  local refusal = check_claim(pod, epoch, model, token)
  if refusal then return refusal end
  drop_claim(model, pod)
  set_residency(pod, model, 'device', '-', bytes)
  promote(name, model)
  return {'ok'}
end

function op.fail(pod, epoch, model, token, name, failure)
  local refusal = check_claim(pod, epoch, model, token)
  if refusal then return refusal end
  drop_claim(model, pod)
  end_load(pod, model)
  record_failure(name, model, failure)
  return {'ok'}
end

-- A model that was warm at the pod stopped working there.
function op.broken(pod, epoch, model, name, failure)
  if not holds_lease(pod, epoch) then return {'lost'} end
  record_failure(name, model, failure)
  return {'ok'}
end

function op.tier(pod, epoch, model, tier, bytes)
  if not holds_lease(pod, epoch) then return {'lost'} end
  local token, expiry = claim_of(model, pod)
  if token and expiry ~= 0 and tier ~= 'device' then
    set_residency(pod, model, tier, tier, bytes)  -- a gateway claimed a load meanwhile
    return {'ok'}
  end
  drop_claim(model, pod)
  set_residency(pod, model, tier, '-', bytes)
  return {'ok'}
end
