-- What has expired; the whole state for a new copy, and which pod takes it for all.

-- Visits every pod, so it runs for each snapshot, but for all syncs together once in 0.9 s at most.
local function expire_reservations()
  for _, pod in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
    expire_in('slots', pod)
    expire_in('ongoing', pod)
  end
end

function op.sync()
  expire_pods()
  expire_claims()
  if redis.call('SET', key('swept'), now, 'NX', 'PX', 900) then
    expire_reservations()
    forget_withdrawn()
  end
  return true
end

local function all_pods()
  local pods = {}
  for _, pod in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
    local record = {pod_record(pod)}
    record[9] = redis.call('HGETALL', key('residency:' .. pod))
    pods[#pods + 1] = record
  end
  return pods
end

local function all_samples()
  local samples = {}
  for _, model in ipairs(redis.call('SMEMBERS', key('measured'))) do
    local measures = redis.call('HGETALL', key('samples:' .. model))
    if #measures == 0 then redis.call('SREM', key('measured'), model) end
    samples[#samples + 1] = {model, measures}
  end
  return samples
end

local function all_steps()
  local found = {}
  for _, pod in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
    local steps, models = queued_steps(pod)
    if models > 0 then found[#found + 1] = {pod, steps} end
  end
  return found
end

local function whole_state()
  return {all_pods(), all_samples(), or_false(redis.call('GET', key('wanted'))),
    or_false(redis.call('GET', key('expected'))), or_false(redis.call('GET', key('placement'))),
    all_steps(), reported('speed'), or_false(redis.call('GET', key('tenants')))}
end

local function expire_all()
  expire_pods()
  expire_claims()
  expire_reservations()
end

-- The state for a new copy, except the hashes that clients read with separate commands.
function op.snapshot()
  expire_all()
  return whole_state()
end

-- The same for a reader that keeps no copy: a Redis that cannot save shows pods as last reported.
function op.look()
  pcall(expire_all)
  return whole_state()
end

-- Where a pod gets a snapshot, which begins with its version in 20 digits: the stored one, if it is
-- of `at_least` (0: the current version); else one pod takes one and stores it, while others wait.
local MIN_SHARING_PODS = 16
local SHARING_MS = 5000  -- if the one that takes it is lost; it shortens the time once it is done

function op.share_snapshot(at_least)
  if redis.call('ZCARD', key('leases')) < MIN_SHARING_PODS then return 'alone' end
  local current = current_version('news_version')
  local stored = tonumber(redis.call('GETRANGE', key('snapshot'), 0, 19))
  if stored and stored <= current and stored >= (at_least > 0 and at_least or current) then
    return 'stored'
  end
  return redis.call('SET', key('sharing'), 1, 'NX', 'PX', SHARING_MS) and 'take' or 'wait'
end
