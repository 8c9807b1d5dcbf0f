-- Declared models, and the rules for tenants. When a model's generation changes while a pod is warm
-- for the old one, the old one keeps serving as `previous` until a pod is warm for the new one.

local function is_warm(model)
  return model and redis.call('SCARD', key('warm:' .. model)) > 0
end

-- Measurements of a generation outlive it: one that is declared again soon is known at once.
local KEPT_MS = 600000
local MAX_FORGOTTEN = 100  -- in one batch

local function forget_later(model) redis.call('ZADD', key('forgotten'), now + KEPT_MS, model) end

local function is_generation(hash, model)
  local name = model:match('^(.*)@')
  return name and redis.call('HGET', key(hash), name) == model
end

local function forget_withdrawn()
  local due = redis.call(
    'ZRANGEBYSCORE', key('forgotten'), '-inf', now, 'LIMIT', 0, MAX_FORGOTTEN)
  for _, model in ipairs(due) do
    redis.call('ZREM', key('forgotten'), model)
    if is_generation('previous_keys', model) then
      forget_later(model)  -- it serves until the new one is warm
    elseif not is_generation('keys', model) then
      redis.call('DEL', key('samples:' .. model))
      redis.call('SREM', key('measured'), model)
      change('forget', model)
    end
  end
end

-- What a pod could not read of a model, for whoever declared it; a load knows better.
function op.unreadable(model, name, failure)
  if redis.call('HGET', key('keys'), name) ~= model or is_warm(model) then return {'ok'} end
  redis.call('HSET', key('failures'), name, failure)
  publish_model(name)
  return {'ok'}
end

local function put(name, model, spec)
  local old_spec = redis.call('HGET', key('models'), name)
  local old_model = redis.call('HGET', key('keys'), name)
  if old_spec == spec then
    if redis.call('HDEL', key('failures'), name) > 0 then publish_model(name) end
    return 'unchanged'
  end
  if old_model and old_model ~= model and is_warm(old_model) then
    redis.call('HSET', key('previous'), name, old_spec)
    redis.call('HSET', key('previous_keys'), name, old_model)
  end
  if old_model and old_model ~= model then forget_later(old_model) end
  local previous = redis.call('HGET', key('previous_keys'), name)
  if previous and (previous == model or is_warm(model) or not is_warm(previous)) then
    drop_previous(name)
  end
  if not old_spec then redis.call('HSET', key('declared'), name, now) end
  redis.call('HSET', key('models'), name, spec)
  redis.call('HSET', key('keys'), name, model)
  redis.call('HDEL', key('failures'), name)
  publish_model(name)
  return old_spec and 'configured' or 'created'
end

-- declarations: {name, key, specification} each.
function op.put(declarations)
  expire_pods()
  local outcomes = {}
  for index, item in ipairs(declarations) do outcomes[index] = put(item[1], item[2], item[3]) end
  return outcomes
end

-- Fields of `profiles` are "name|product"; an older version wrote the name alone.
local function drop_profiles(name)
  local profiled = key('profiled:' .. name)
  local fields = {name}
  for _, product in ipairs(redis.call('SMEMBERS', profiled)) do
    fields[#fields + 1] = name .. '|' .. product
  end
  for _, field in ipairs(fields) do
    if redis.call('HDEL', key('profiles'), field) > 0 then change('profile', field, false) end
  end
  redis.call('DEL', profiled)
end

function op.delete(name)
  local existed = redis.call('HDEL', key('models'), name)
  for _, hash in ipairs({'keys', 'previous_keys'}) do
    local model = redis.call('HGET', key(hash), name)
    if model then forget_later(model) end
  end
  for _, hash in ipairs({'keys', 'previous', 'previous_keys', 'failures', 'acted', 'declared'}) do
    redis.call('HDEL', key(hash), name)
  end
  drop_profiles(name)
  if redis.call('HDEL', key('accuracies'), name) > 0 then change('accuracy', name, false) end
  if existed > 0 then publish_model(name) end
  return existed
end

-- Name and time of each model's declaration in turn; an older version wrote no time.
function op.declared() return redis.call('HGETALL', key('declared')) end

-- Pairs of them, of models that were declared in an earlier run.
function op.declared_at(times)
  for _, item in ipairs(times) do
    if redis.call('HEXISTS', key('models'), item[1]) == 1 then
      redis.call('HSET', key('declared'), item[1], item[2])
    end
  end
  return true
end

-- The rules for tenants. An older token than the last is of a controller that leads no more; it is
-- remembered for a minute, since a cluster that is restored begins with lower ones.
local FENCE_MS = 60000

function op.put_tenants(token, text)
  if token < tonumber(redis.call('GET', key('tenants_fence')) or 0) then return 'fenced' end
  redis.call('SET', key('tenants_fence'), string.format('%.0f', token), 'PX', FENCE_MS)
  if redis.call('GET', key('tenants')) == text then return 'unchanged' end
  redis.call('SET', key('tenants'), text)
  change('tenants', text)
  return 'ok'
end

function op.model(name) return {model_record(name)} end

-- Cost of a generation's inference by batch size on one accelerator product, kept while its model
-- is declared.
function op.profile(name, model, profile, product)
  local current_model = redis.call('HGET', key('keys'), name)
  local previous = redis.call('HGET', key('previous_keys'), name)
  if current_model ~= model and previous ~= model then return false end
  local field = name .. '|' .. product
  redis.call('HSET', key('profiles'), field, profile)
  redis.call('SADD', key('profiled:' .. name), product)
  change('profile', field, profile)
  return true
end
