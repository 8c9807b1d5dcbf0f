-- Applications, and the accuracy of the models that are their variants. No application has the name
-- of a model.

function op.put_application(name, text)
  if redis.call('HEXISTS', key('models'), name) == 1 then return 'taken' end
  local old = redis.call('HGET', key('applications'), name)
  if old == text then return 'unchanged' end
  redis.call('HSET', key('applications'), name, text)
  change('application', name, text)
  return old and 'configured' or 'created'
end

function op.delete_application(name)
  local existed = redis.call('HDEL', key('applications'), name)
  if existed > 0 then change('application', name, false) end
  return existed
end

-- The names among these that applications have.
function op.taken(names)
  local taken = {}
  for _, name in ipairs(names) do
    if redis.call('HEXISTS', key('applications'), name) == 1 then taken[#taken + 1] = name end
  end
  return taken
end

-- The accuracy of one generation, kept while its model is declared.
function op.accuracy(name, model, text)
  if redis.call('HGET', key('keys'), name) ~= model then return false end
  redis.call('HSET', key('accuracies'), name, text)
  change('accuracy', name, text)
  return true
end
