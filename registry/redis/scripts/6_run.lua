-- Sync, snapshot, and the run of a batch: ARGV[1] holds the operations, ARGV[2] their origin.
-- Changes are published once per batch, under one new version: all of them to gateways; to pods
-- without the counts and steps, which change with every request, and without expected arrivals.

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
    all_steps()}
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

-- Versions begin at the clock, so a Redis that lost its data repeats no version that copies have.
local function current_version(counter)
  local version = redis.call('GET', key(counter))
  if version then return tonumber(version) end
  redis.pcall('SET', key(counter), now * 10)  -- a Redis that cannot save can be read all the same
  return now * 10
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

local results = {}
for index, call in ipairs(cjson.decode(ARGV[1])) do
  -- A failed operation must neither stop the others nor hide what they have written.
  local ok, result = pcall(op[call[1]], unpack(call, 2))
  if not ok then
    result = {error = type(result) == 'table' and result.err or tostring(result)}
  end
  results[index] = result
end

local function publish(channel, counter)
  local version = redis.call('INCR', key(counter))
  if version == 1 then
    version = now * 10
    redis.call('SET', key(counter), version)
  end
  local encoded = cjson.encode(changes)
  redis.call('PUBLISH', key(channel), version .. ' ' .. now .. ' ' .. ARGV[2] .. ' ' .. encoded)
  return version, encoded
end

local news_version
if #changes > 0 then
  news_version = publish('news', 'news_version')
else
  news_version = current_version('news_version')
end
if expected then change('expected', expected) end
for pod in pairs(changed_counts) do
  if redis.call('EXISTS', key('pod:' .. pod)) == 1 then change('counts', pod, counts(pod)) end
end
for pod in pairs(changed_steps) do
  if redis.call('EXISTS', key('pod:' .. pod)) == 1 then
    change('steps', pod, (queued_steps(pod)))
  end
end
local version
local encoded = '[]'
if #changes > 0 then
  version, encoded = publish('changes', 'version')
else
  version = current_version('version')
end
return {version, news_version, now, cjson.encode(results), encoded}
