-- Reservations: a slot at the entry pod and a place in the inference stage of the predict pod, both
-- or neither. Reservations expire, so those of a gateway that dies are released. A step of a workflow
-- takes no slot (slots = 0): it waits in the pod's step queue, which the pod bounds. Its id ends with
-- '|' and the model's key, so that every scheduler reads from the copies what is queued at a pod.

-- What a batch has read of pods: `slots`, false where the pod accepts nothing, and which models are
-- `warm` there. Only other operations change it.
local known = {}

local function look_at(pod)
  if not known[pod] then
    local read = is_alive(pod) and redis.call('HMGET', key('pod:' .. pod), 'slots', 'phase') or {}
    known[pod] = {slots = read[2] == 'ready' and tonumber(read[1]), warm = {}}
  end
  return known[pod]
end

-- A pod whose lease is over is removed before a caller hears so. A Redis that cannot save raises an
-- error then, and the caller goes on without it: its copy would keep such a pod.
local function gone(pod)
  if redis.call('ZSCORE', key('leases'), pod) and not is_alive(pod) then
    define_others()
    remove_pod(pod)
  end
  return 'gone'
end

-- Enter reservations in a set, or with 'NX' those that are not there; how many were added.
local function enter(set, ttl_ms, ids, first, last, ...)
  local members, expiry = {...}, string.format('%d', now + ttl_ms)
  for index = first, last do
    members[#members + 1] = expiry
    members[#members + 1] = ids[index]
  end
  return count_added(set, redis.call('ZADD', set, unpack(members)))
end

-- For several requests with the same terms: how many of them, from the first on, are granted, what
-- these are answered, and why the others are refused.
-- mode: 'warm' needs the model on the predict pod's device; 'join' accepts a load in progress
-- there; 'load' may claim a load at that pod, but only while at most `copies` other pods hold or
-- load the model (-1: any number), so that two gateways that act on the same state load it once.
-- Answered is 'warm', or the tier that the load starts from and the token of a claim: 'disk 17'.
function op.reserve(ids, ttl_ms, entry, predict, model, mode, copies, target, claim_ms, slots)
  local at, infers_at = look_at(entry), look_at(predict)
  if not at.slots then return 0, nil, gone(entry) end
  local fitting, refusal = #ids, nil
  if slots > 0 then
    local free = at.slots - count_reservations('slots', entry)
    if free < fitting then fitting, refusal = free, 'full' end
    if refusal then mark_counts(entry) end
    if fitting <= 0 then return 0, nil, refusal end
  end
  if not infers_at.slots then return 0, nil, gone(predict) end
  if target > 0 then
    local free = target - count_reservations('ongoing', predict)
    if free < fitting then fitting, refusal = free, 'busy' end
    if refusal then mark_counts(predict) end
    if fitting <= 0 then return 0, nil, refusal end
  end
  local answer = 'warm'
  if not infers_at.warm[model] then
    local tier, loading = residency(predict, model)
    infers_at.warm[model] = tier == 'device'
    if tier ~= 'device' then
      define_others()
      answer = loading and loading ~= '-' and claim_of(model, predict) and loading
      if answer and mode == 'warm' or not answer and mode ~= 'load' then return 0, nil, 'cold' end
      if not answer then
        if copies >= 0 and copies_elsewhere(model, predict) > copies then
          return 0, nil, 'elsewhere'
        end
        local token, start = make_claim(model, predict, claim_ms)
        answer = start .. ' ' .. token
      end
    end
  end
  if slots > 0 then enter(key('slots:' .. entry), ttl_ms, ids, 1, fitting) end
  enter(key('ongoing:' .. predict), ttl_ms, ids, 1, fitting)
  if step_model(ids[1]) then changed_steps[predict] = true end
  mark_counts(entry)
  mark_counts(predict)
  return fitting, answer, refusal
end

local function remove_from(set, ids)
  return count_added(set, -redis.call('ZREM', set, unpack(ids))) < 0
end

local function end_ongoing(ids, predict)
  if not remove_from(key('ongoing:' .. predict), ids) then return end
  mark_counts(predict)
  if step_model(ids[1]) then changed_steps[predict] = true end
end

function op.release(ids, ttl_ms, entry, predict)
  if remove_from(key('slots:' .. entry), ids) then mark_counts(entry) end
  end_ongoing(ids, predict)
  return #ids, true
end

function op.renew(ids, ttl_ms, entry, predict)
  for index = 1, #ids do
    enter(key('slots:' .. entry), ttl_ms, ids, index, index, 'XX')
    enter(key('ongoing:' .. predict), ttl_ms, ids, index, index, 'XX')
  end
  return #ids, true
end

-- Restore reservations of requests that are still running after their pod registered again.
function op.hold(ids, ttl_ms, entry, predict)
  if not is_alive(entry) or not is_alive(predict) then return #ids, false end
  for index = 1, #ids do
    if enter(key('slots:' .. entry), ttl_ms, ids, index, index, 'NX') > 0 then
      enter(key('ongoing:' .. predict), ttl_ms, ids, index, index)
      mark_counts(entry)
      mark_counts(predict)
    end
  end
  return #ids, true
end

-- The inference stage has ended; the slot stays taken until the response is sent.
function op.infer_end(id, predict)
  end_ongoing({id}, predict)
  return true
end
