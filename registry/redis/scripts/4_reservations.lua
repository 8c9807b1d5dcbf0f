-- Reservations: a slot at the entry pod and a place in the inference stage of the predict pod, both
-- or neither. Reservations expire, so those of a gateway that dies are released. A step of a workflow
-- takes no slot (slots = 0): it waits in the pod's step queue, which the pod bounds. Its id ends with
-- '|' and the model's key, so that every scheduler reads from the copies what is queued at a pod.

-- A pod whose lease is over is removed before a caller hears so. A Redis that cannot save raises an
-- error then, and the caller goes on without it: its copy would keep such a pod.
local function gone(pod)
  if redis.call('ZSCORE', key('leases'), pod) and not is_alive(pod) then remove_pod(pod) end
  return {'gone', pod}
end

-- mode: 'warm' needs the model on the predict pod's device; 'join' accepts a load in progress
-- there; 'load' may claim a load at that pod, but only while at most `copies` other pods hold or
-- load the model (-1: any number), so that two gateways that act on the same state load it once.
function op.reserve(id, ttl_ms, entry, predict, model, mode, copies, target, claim_ms, slots)
  if not is_alive(entry) then return gone(entry) end
  local pod = redis.call('HMGET', key('pod:' .. entry), 'slots', 'phase')
  if pod[2] ~= 'ready' then return {'gone', entry} end
  if slots > 0 and count_reservations('slots', entry) >= tonumber(pod[1]) then
    mark_counts(entry)
    return {'full', entry}
  end
  if predict ~= entry and not is_serving(predict) then return gone(predict) end
  if target > 0 then
    if count_reservations('ongoing', predict) >= target then
      mark_counts(predict)
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
  if slots > 0 then redis.call('ZADD', key('slots:' .. entry), now + ttl_ms, id) end
  redis.call('ZADD', key('ongoing:' .. predict), now + ttl_ms, id)
  if step_model(id) then changed_steps[predict] = true end
  mark_counts(entry)
  mark_counts(predict)
  return {'ok', token, start}
end

local function end_ongoing(id, predict)
  if redis.call('ZREM', key('ongoing:' .. predict), id) == 0 then return end
  mark_counts(predict)
  if step_model(id) then changed_steps[predict] = true end
end

function op.release(id, entry, predict)
  if redis.call('ZREM', key('slots:' .. entry), id) > 0 then mark_counts(entry) end
  end_ongoing(id, predict)
  return true
end

function op.renew(id, ttl_ms, entry, predict)
  redis.call('ZADD', key('slots:' .. entry), 'XX', now + ttl_ms, id)
  redis.call('ZADD', key('ongoing:' .. predict), 'XX', now + ttl_ms, id)
  return true
end

-- Restore the reservation of a request that is still running after its pod registered again.
function op.hold(id, ttl_ms, entry, predict)
  if not is_alive(entry) or not is_alive(predict) then return false end
  if redis.call('ZADD', key('slots:' .. entry), 'NX', now + ttl_ms, id) > 0 then
    redis.call('ZADD', key('ongoing:' .. predict), now + ttl_ms, id)
    mark_counts(entry)
    mark_counts(predict)
  end
  return true
end

-- The inference stage has ended; the slot stays taken until the response is sent.
function op.infer_end(id, predict)
  end_ongoing(id, predict)
  return true
end

-- Visits every pod, so it runs for each snapshot, but for all syncs together once in 0.9 s at most.
local function expire_reservations()
  for _, pod in ipairs(redis.call('ZRANGE', key('leases'), 0, -1)) do
    expire_in('slots', pod)
    expire_in('ongoing', pod)
  end
end
