-- What every operation shares: the pool's keys, the clock, counts, and the list of changes that is
-- published when the batch ends. All keys of a pool carry one hash tag, so a batch stays in one
-- slot of a Redis Cluster. Times are milliseconds of Redis' own clock.
local prefix = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local changes = {}
local counted = {}
local op = {}

local function key(name) return prefix .. name end

local function change(...) changes[#changes + 1] = {...} end

local function touch(pod) counted[pod] = true end

local function or_false(value) if value then return value end return false end

-- A reservation or lease whose score lies in the past is over, whether or not somebody swept it.
local function purge(set) return redis.call('ZREMRANGEBYSCORE', set, '-inf', now) end

local function alive(pod)
  local expiry = redis.call('ZSCORE', key('leases'), pod)
  return expiry and tonumber(expiry) > now
end

local function current(pod, epoch)
  return alive(pod) and redis.call('HGET', key('pod:' .. pod), 'epoch') == tostring(epoch)
end

-- Epochs and tokens. They begin at the clock, so that a Redis that lost its data gives none again.
local function next_fence()
  local fence = redis.call('INCR', key('fence'))
  if fence > 1 then return fence end
  redis.call('SET', key('fence'), now)
  return now
end

-- Alive and taking requests: what policies may count on.
local function serving(pod)
  return alive(pod) and redis.call('HGET', key('pod:' .. pod), 'phase') == 'ready'
end

-- How many reservations stand in one of a pod's sets, those that expired just now cleared away.
local function occupied(set, pod)
  if purge(set) > 0 then touch(pod) end
  return redis.call('ZCARD', set)
end

local function counts(pod)
  purge(key('slots:' .. pod))
  purge(key('ongoing:' .. pod))
  return redis.call('ZCARD', key('slots:' .. pod)), redis.call('ZCARD', key('ongoing:' .. pod))
end

-- Residency of a model at a pod: "tier|loading_from|since|bytes"; loading_from is "-" when settled.
-- "remote" with bytes: the pod has the model's small files, which is all an entry pod needs.
local function residency(pod, model)
  local text = redis.call('HGET', key('residency:' .. pod), model)
  if not text then return nil end
  local tier, loading, since, bytes = text:match('^([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
  return tier, loading, since, bytes
end

local function publish_model(name)
  change('model', name, or_false(redis.call('HGET', key('models'), name)),
    or_false(redis.call('HGET', key('previous'), name)),
    or_false(redis.call('HGET', key('failures'), name)))
end

-- The pod is not warm any more. A previous generation that nobody holds has served its time: it
-- would have to be loaded as well as the new one.
local function cool(pod, model)
  local warm = key('warm:' .. model)
  if redis.call('SREM', warm, pod) == 0 or redis.call('SCARD', warm) > 0 then return end
  local name = model:match('^(.*)@')
  if name and redis.call('HGET', key('previous_keys'), name) == model then
    redis.call('HDEL', key('previous'), name)
    redis.call('HDEL', key('previous_keys'), name)
    publish_model(name)
  end
end

local function set_residency(pod, model, tier, loading, bytes)
  if tier == 'device' then
    redis.call('SADD', key('warm:' .. model), pod)
  else
    cool(pod, model)
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

local function publish_pod(pod)
  local fields = redis.call('HMGET', key('pod:' .. pod), 'info', 'epoch', 'phase', 'used', 'loads')
  local slots, ongoing = counts(pod)
  counted[pod] = nil
  change('pod', pod, fields[1], tonumber(fields[2]), fields[3], fields[4], tonumber(fields[5]),
    slots, ongoing)
end
