-- Shared by all operations: the pool's keys, the clock, reservation counts, and the list of changes
-- that is published when the batch ends. All keys of a pool carry one hash tag, so a batch stays in
-- one slot of a Redis Cluster. Times are milliseconds of Redis' own clock.
local prefix = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local changes = {}
local changed_counts = {}
local changed_steps = {}
local op = {}

local function key(name) return prefix .. name end

local function change(...) changes[#changes + 1] = {...} end

local function mark_counts(pod) changed_counts[pod] = true end

-- The model of a step's reservation, which its id names; nil for the reservation of a request.
local function step_model(id) return id:match('|(.*)$') end

local function or_false(value) if value then return value end return false end

-- Members of reservations and leases expire by their score, even before a sync removes them; in a
-- Redis that cannot save, none can.
local function remove_expired(set)
  local removed = redis.pcall('ZREMRANGEBYSCORE', set, '-inf', now)
  return type(removed) == 'number' and removed or 0
end

local function is_alive(pod)
  local expiry = redis.call('ZSCORE', key('leases'), pod)
  return expiry and tonumber(expiry) > now
end

local function holds_lease(pod, epoch)
  return is_alive(pod) and redis.call('HGET', key('pod:' .. pod), 'epoch') == tostring(epoch)
end

-- Epochs and tokens. They begin at the clock, so a Redis that lost its data repeats none.
local function next_fence()
  local fence = redis.call('INCR', key('fence'))
  if fence > 1 then return fence end
  redis.call('SET', key('fence'), now)
  return now
end

-- Alive and accepting requests.
local function is_serving(pod)
  return is_alive(pod) and redis.call('HGET', key('pod:' .. pod), 'phase') == 'ready'
end

-- Drop the pod's expired reservations from a set, 'slots' or 'ongoing'; how many there were.
local function expire_in(name, pod)
  local expired = remove_expired(key(name .. ':' .. pod))
  if expired > 0 then
    mark_counts(pod)
    if name == 'ongoing' then changed_steps[pod] = true end
  end
  return expired
end

-- Number of the pod's reservations in a set, without expired ones.
local function count_reservations(name, pod)
  expire_in(name, pod)
  return redis.call('ZCOUNT', key(name .. ':' .. pod), '(' .. now, '+inf')
end

local function counts(pod)
  return count_reservations('slots', pod), count_reservations('ongoing', pod)
end

-- Steps that schedulers have placed at the pod and whose inference has not ended, by model; of so
-- many models at most as a pod's step queue has places.
local MAX_STEP_MODELS = 64

local function queued_steps(pod)
  local found, models = {}, 0
  for _, id in ipairs(redis.call('ZRANGE', key('ongoing:' .. pod), 0, -1)) do
    local model = step_model(id)
    if model and (found[model] or models < MAX_STEP_MODELS) then
      if not found[model] then models = models + 1 end
      found[model] = (found[model] or 0) + 1
    end
  end
  return found, models
end

-- Residency of a model at a pod: "tier|loading_from|since|bytes"; loading_from is "-" without a
-- load. "remote" with bytes: the pod has the model's small files, which is all that an entry pod
-- needs.
local function residency(pod, model)
  local text = redis.call('HGET', key('residency:' .. pod), model)
  if not text then return nil end
  local tier, loading, since, bytes = text:match('^([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
  return tier, loading, since, bytes
end

local function model_record(name)
  return or_false(redis.call('HGET', key('models'), name)),
    or_false(redis.call('HGET', key('previous'), name)),
    or_false(redis.call('HGET', key('failures'), name))
end

local function publish_model(name) change('model', name, model_record(name)) end

local function drop_previous(name)
  return redis.call('HDEL', key('previous'), name) + redis.call('HDEL', key('previous_keys'), name)
end

-- The pod is not warm any more. A previous generation without a warm pod is dropped: it would have
-- to be loaded as well as the new one.
local function remove_warm(pod, model)
  local warm = key('warm:' .. model)
  if redis.call('SREM', warm, pod) == 0 or redis.call('SCARD', warm) > 0 then return end
  local name = model:match('^(.*)@')
  if name and redis.call('HGET', key('previous_keys'), name) == model then
    drop_previous(name)
    publish_model(name)
  end
end

local function set_residency(pod, model, tier, loading, bytes)
  if tier == 'device' then
    redis.call('SADD', key('warm:' .. model), pod)
  else
    remove_warm(pod, model)
  end
  if tier == 'remote' and loading == '-' and tonumber(bytes) == 0 then
    redis.call('HDEL', key('residency:' .. pod), model)
    change('at', model, pod, false)
    return
  end
  local text = tier .. '|' .. loading .. '|' .. now .. '|' .. bytes
  redis.call('HSET', key('residency:' .. pod), model, text)
  change('at', model, pod, text)
end

-- A pod as the change 'pod' and the snapshot carry it.
local function pod_record(pod)
  local fields = redis.call('HMGET', key('pod:' .. pod), 'info', 'epoch', 'phase', 'used', 'loads')
  local slots, ongoing = counts(pod)
  return pod, fields[1], tonumber(fields[2]), fields[3], fields[4], tonumber(fields[5]), slots,
    ongoing
end

local function publish_pod(pod)
  change('pod', pod_record(pod))
  changed_counts[pod] = nil
end
