-- Declared models. When a model's generation changes while the old one is warm somewhere, the old
-- one serves on as `previous` until the new one is warm for the first time.

local function is_warm(model)
  return model and redis.call('SCARD', key('warm:' .. model)) > 0
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
  local previous = redis.call('HGET', key('previous_keys'), name)
  if previous and (previous == model or is_warm(model) or not is_warm(previous)) then
    redis.call('HDEL', key('previous'), name)
    redis.call('HDEL', key('previous_keys'), name)
  end
  redis.call('HSET', key('models'), name, spec)
  redis.call('HSET', key('keys'), name, model)
  redis.call('HDEL', key('failures'), name)
  publish_model(name)
  return old_spec and 'configured' or 'created'
end

-- Several declarations at once: {name, key, specification} each.
function op.put(declarations)
  reap_pods()
  local outcomes = {}
  for index, item in ipairs(declarations) do outcomes[index] = put(item[1], item[2], item[3]) end
  return outcomes
end

function op.delete(name)
  local existed = redis.call('HDEL', key('models'), name)
  for _, hash in ipairs({'keys', 'previous', 'previous_keys', 'failures'}) do
    redis.call('HDEL', key(hash), name)
  end
  redis.call('HDEL', key('acted'), name)
  if redis.call('HDEL', key('profiles'), name) > 0 then change('profile', name, false) end
  if existed > 0 then publish_model(name) end
  return existed
end

function op.model(name)
  return {or_false(redis.call('HGET', key('models'), name)),
    or_false(redis.call('HGET', key('previous'), name)),
    or_false(redis.call('HGET', key('failures'), name))}
end

-- What a generation's inference costs by batch size. It is kept while its model is declared.
function op.profile(name, model, profile)
  local current_model = redis.call('HGET', key('keys'), name)
  local previous = redis.call('HGET', key('previous_keys'), name)
  if current_model ~= model and previous ~= model then return false end
  redis.call('HSET', key('profiles'), name, profile)
  change('profile', name, profile)
  return true
end

-- A model that stopped working at a pod that had it: said of the model for all to see.
function op.broken(pod, epoch, model, name, failure)
  if not current(pod, epoch) then return {'lost'} end
  if redis.call('HGET', key('keys'), name) == model then
    redis.call('HSET', key('failures'), name, failure)
    publish_model(name)
  end
  return {'ok'}
end
