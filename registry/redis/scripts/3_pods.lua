-- Pods and their leases: a pod that does not renew its lease is removed with everything it holds.

local function or_false(value) if value then return value end return false end

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

local function address_of(info) return cjson.decode(info).address end

local function remove_address(pod)
  local info = redis.call('HGET', key('pod:' .. pod), 'info')
  local address = info and address_of(info)
  if address and redis.call('HGET', key('addresses'), address) == pod then
    redis.call('HDEL', key('addresses'), address)
  end
end

function remove_pod(pod, is_registering)
  remove_address(pod)
  local models = redis.call('HKEYS', key('residency:' .. pod))
  for _, model in ipairs(models) do
    if is_registering then  -- the pod reports the models that it still holds at once
      redis.call('SREM', key('warm:' .. model), pod)
    else
      remove_warm(pod, model)
    end
    redis.call('HDEL', key('claims:' .. model), pod)
    redis.call('ZREM', key('unstarted'), model .. '|' .. pod)
  end
  redis.call('DEL', key('residency:' .. pod), key('slots:' .. pod), key('ongoing:' .. pod),
    key('pod:' .. pod))
  redis.call('ZREM', key('leases'), pod)
  changed_counts[pod] = nil
  counted[key('slots:' .. pod)], counted[key('ongoing:' .. pod)] = nil, nil
  change('gone', pod)
end

local function expire_pods()
  local expired = redis.call('ZRANGEBYSCORE', key('leases'), '-inf', now)
  for _, pod in ipairs(expired) do remove_pod(pod) end
end

-- A pod has the place of a plan that it took for as long as it is registered with it.
local function start_holding(pod, place)
  local held = place and redis.call('HGET', key('places'), place)
  if held and cjson.decode(held)[1] == pod then
    redis.call('HSET', key('places'), place, cjson.encode({pod, 0}))
  end
end

-- kind: product and share of the pod's accelerator; empty if the pod does not know it.
function op.register(pod, info, slots, lease_ms, kind)
  remove_pod(pod, true)
  local epoch = next_fence()
  redis.call('HSET', key('pod:' .. pod), 'info', info, 'slots', slots, 'epoch', epoch,
    'phase', 'ready', 'used', '{}', 'loads', 0, 'kind', kind)
  redis.call('HSET', key('addresses'), address_of(info), pod)
  redis.call('ZADD', key('leases'), now + lease_ms, pod)
  start_holding(pod, cjson.decode(info).place)
  publish_pod(pod)
  return epoch
end

function op.has_address(address)
  local pod = redis.call('HGET', key('addresses'), address)
  return pod and is_alive(pod) or false
end

-- Fields are measures, "measure|kind" where the pod knows the kind of its accelerator.
local function append_samples(model, measure, values)
  local hash = key('samples:' .. model)
  local stored = redis.call('HGET', hash, measure)
  local list = stored and cjson.decode(stored) or {}
  for _, value in ipairs(values) do list[#list + 1] = value end
  while #list > 64 do table.remove(list, 1) end
  redis.call('HSET', hash, measure, cjson.encode(list))
  redis.call('EXPIRE', hash, 86400)
  redis.call('SADD', key('measured'), model)
  change('samples', model, measure, values)
end

-- Idle memory of the pool, summed over all its pods, ended ones included. A pod's own total only
-- grows, also across lost leases and replies; a total below the last one comes from a new process,
-- which started at 0.
local function add_idle_memory(pod, byte_s)
  local last = key('idle:' .. pod)
  local before = tonumber(redis.call('GET', last) or 0)
  if byte_s == before then return end
  redis.call('INCRBYFLOAT', key('idle_memory'), byte_s > before and byte_s - before or byte_s)
  redis.call('SET', last, byte_s, 'EX', 86400)
end

function op.idle_memory()
  return redis.call('GET', key('idle_memory')) or '0'
end

-- A heartbeat. copies: use of the pod's copies as JSON, which only autoscalers read, and gpu, what
-- the driver says of its GPU, are not published; speed is, as JSON. All three are absent from pods
-- of an older version.
function op.beat(pod, epoch, lease_ms, used, loads, samples, idle_byte_s, copies, gpu, speed)
  if not holds_lease(pod, epoch) then return {'lost'} end
  redis.call('ZADD', key('leases'), now + lease_ms, pod)
  local hash = key('pod:' .. pod)
  local known = redis.call('HMGET', hash, 'used', 'loads', 'kind', 'speed')
  if known[1] ~= used or known[2] ~= tostring(loads) then
    redis.call('HSET', hash, 'used', used, 'loads', loads)
    publish_pod(pod)
  end
  local suffix = known[3] and known[3] ~= '' and '|' .. known[3] or ''
  for _, sample in ipairs(samples) do
    append_samples(sample[1], sample[2] .. suffix, sample[3])
  end
  add_idle_memory(pod, idle_byte_s)
  if copies then redis.call('HSET', hash, 'copies', copies, 'copies_at', now) end
  if gpu and gpu ~= '' then redis.call('HSET', hash, 'gpu', gpu) end
  if speed and speed ~= (known[4] or '') then
    redis.call('HSET', hash, 'speed', speed)
    change('speed', pod, speed)
  end
  return {'ok'}
end

-- {pod, value} of each pod that reports this field.
local function reported(field)
  local found = {}
  for _, pod in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
    local value = redis.call('HGET', key('pod:' .. pod), field)
    if value then found[#found + 1] = {pod, value} end
  end
  return found
end

function op.gpus() return reported('gpu') end

-- {pod, time of the report in ms, report} of each pod that reports the use of its copies.
function op.copies()
  local found = {}
  for _, pod in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
    local stored = redis.call('HMGET', key('pod:' .. pod), 'copies', 'copies_at')
    if stored[1] then found[#found + 1] = {pod, tonumber(stored[2]), stored[1]} end
  end
  return found
end

-- Slots that follow what a pod's engines have free.
function op.resize(pod, epoch, info, slots)
  if not holds_lease(pod, epoch) then return {'lost'} end
  redis.call('HSET', key('pod:' .. pod), 'info', info, 'slots', slots)
  change('slots', pod, slots)
  return {'ok'}
end

function op.phase(pod, epoch, phase)
  if not holds_lease(pod, epoch) then return {'lost'} end
  redis.call('HSET', key('pod:' .. pod), 'phase', phase)
  publish_pod(pod)
  return {'ok'}
end

function op.leave(pod, epoch)
  if redis.call('HGET', key('pod:' .. pod), 'epoch') ~= tostring(epoch) then return {'lost'} end
  remove_pod(pod)
  return {'ok'}
end
