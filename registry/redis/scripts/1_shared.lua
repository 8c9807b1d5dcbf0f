-- Shared by all operations: the pool's keys, the clock, reservation counts, versions, and the list
-- of changes that is published when the batch ends. All keys of a pool carry one hash tag, so a batch
-- stays in one slot of a Redis Cluster. Times are milliseconds of Redis' own clock.
local prefix = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local changes = {}
local changed_counts = {}
local changed_steps = {}
local op = {}
local unshared = {}  -- changes that pods do not get

-- Most batches have reservations alone, and all functions take longer to define than these to run:
-- those of files 3 to 5 are defined by `define_others`, when one is needed.
local define_others, remove_pod, claim_of, copies_elsewhere, make_claim

local function key(name) return prefix .. name end

local function change(...) changes[#changes + 1] = {...} end

local function mark_counts(pod) changed_counts[pod] = true end

-- The model of a step's reservation, which its id names; nil for the reservation of a request.
local function step_model(id) return id:find('|', 1, true) and id:match('|(.*)$') end

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

-- Drop the pod's expired reservations from a set, 'slots' or 'ongoing'; how many there were.
local function expire_in(name, pod)
  local expired = remove_expired(key(name .. ':' .. pod))
  if expired > 0 then
    mark_counts(pod)
    if name == 'ongoing' then changed_steps[pod] = true end
  end
  return expired
end

-- Number of the pod's reservations in a set, without expired ones; read once in a batch.
local counted = {}

local function count_reservations(name, pod)
  local set = key(name .. ':' .. pod)
  if not counted[set] then
    expire_in(name, pod)
    counted[set] = redis.call('ZCOUNT', set, '(' .. now, '+inf')
  end
  return counted[set]
end

-- So many reservations have been entered in a set, or, below 0, removed.
local function count_added(set, added)
  if counted[set] then counted[set] = counted[set] + added end
  return added
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

-- Versions begin at the clock, so a Redis that lost its data repeats no version that copies have.
local function current_version(counter)
  local version = redis.call('GET', key(counter))
  if version then return tonumber(version) end
  redis.pcall('SET', key(counter), now * 10)  -- a Redis that cannot save can be read all the same
  return now * 10
end
