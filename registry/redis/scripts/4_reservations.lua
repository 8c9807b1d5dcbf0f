-- Reservations: a slot at the entry pod and a place in the inference stage of the predict pod, taken
-- together or not at all. They expire, so a gateway that dies leaks nothing.

-- mode: 'warm' wants the model on the predict pod's device; 'join' accepts a load under way there;
-- 'load' may claim a load at that pod, but only while at most `copies` other pods hold the model or
-- are loading it (-1: however many), so that two gateways that saw the same state load once.
function op.reserve(id, ttl_ms, entry, predict, model, mode, copies, target, claim_ms)
  if not alive(entry) then return {'gone', entry} end
  local pod = redis.call('HMGET', key('pod:' .. entry), 'slots', 'phase')
  if pod[2] ~= 'ready' then return {'gone', entry} end
  local slots_set = key('slots:' .. entry)
  if occupied(slots_set, entry) >= tonumber(pod[1]) then
    touch(entry)
    return {'full', entry}
  end
  if predict ~= entry and not serving(predict) then return {'gone', predict} end
  local ongoing_set = key('ongoing:' .. predict)
  if target > 0 then
    if occupied(ongoing_set, predict) >= target then
      touch(predict)
      return {'busy', predict}
    end
  end
  local tier, loading = residency(predict, model)
  local token, start = 0, 'warm'
  if tier ~= 'device' then
    start = loading and loading ~= '-' and claim_of(model, predict) and loading or nil
    if not start then
      if mode ~= 'load' then return {'cold', predict} end
      if copies >= 0 and copies_elsewhere(model, predict) > copies then
        return {'elsewhere', predict}
      end
      token, start = make_claim(model, predict, claim_ms)
    elseif mode == 'warm' then
      return {'cold', predict}
    end
  end
  redis.call('ZADD', slots_set, now + ttl_ms, id)
  redis.call('ZADD', ongoing_set, now + ttl_ms, id)
  touch(entry)
  touch(predict)
  return {'ok', token, start}
end

function op.release(id, entry, predict)
  if redis.call('ZREM', key('slots:' .. entry), id) > 0 then touch(entry) end
  if redis.call('ZREM', key('ongoing:' .. predict), id) > 0 then touch(predict) end
  return true
end

function op.renew(id, ttl_ms, entry, predict)
  redis.call('ZADD', key('slots:' .. entry), 'XX', now + ttl_ms, id)
  redis.call('ZADD', key('ongoing:' .. predict), 'XX', now + ttl_ms, id)
  return true
end

-- What a pod that registered anew has forgotten: its requests go on all the same.
function op.hold(id, ttl_ms, entry, predict)
  if not alive(entry) or not alive(predict) then return false end
  if redis.call('ZADD', key('slots:' .. entry), 'NX', now + ttl_ms, id) > 0 then
    redis.call('ZADD', key('ongoing:' .. predict), now + ttl_ms, id)
    touch(entry)
    touch(predict)
  end
  return true
end

-- The inference stage is over; the slot stays until the answer is out.
function op.infer_end(id, predict)
  if redis.call('ZREM', key('ongoing:' .. predict), id) > 0 then touch(predict) end
  return true
end

-- It looks at every pod, so it is for new copies, and once a second however many copies there are.
local function reap_reservations()
  for _, pod in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
    if purge(key('slots:' .. pod)) + purge(key('ongoing:' .. pod)) > 0 then touch(pod) end
  end
end
