-- Workflows as deployed, and the journal of their runs. A run has one owner at a time, by a lease
-- with a fencing token; its journal is a list of entries, from which another owner resumes it.
-- An ended run is kept for a while; its entries go at once.

local function run_key(run) return key('run:' .. run) end

local function entries_key(run) return key('run-entries:' .. run) end

local function owns(run, token)
  return redis.call('HGET', run_key(run), 'token') == tostring(token)
    and redis.call('HGET', run_key(run), 'result') == false
end

-- 'taken': the name is that of a workflow of another kind.
function op.put_workflow(name, text)
  local old = redis.call('HGET', key('workflows'), name)
  if old == text then return 'unchanged' end
  if old and cjson.decode(old).kind ~= cjson.decode(text).kind then return 'taken' end
  redis.call('HSET', key('workflows'), name, text)
  return old and 'configured' or 'created'
end

function op.delete_workflow(name)
  redis.call('HDEL', key('workflow-counts'), name, name .. ' version')
  return redis.call('HDEL', key('workflows'), name)
end

function op.workflow(name) return or_false(redis.call('HGET', key('workflows'), name)) end

-- All of them, as name and text in turn.
function op.workflows() return redis.call('HGETALL', key('workflows')) end

-- What a workflow's predictions are made of: 'stored'; 'conflict' where another scheduler has stored
-- since `version` was read; 'gone'. No name has a space.
function op.put_workflow_counts(name, text, version)
  if redis.call('HEXISTS', key('workflows'), name) == 0 then return 'gone' end
  local known = redis.call('HGET', key('workflow-counts'), name .. ' version') or '0'
  if known ~= tostring(version) then return 'conflict' end
  redis.call('HSET', key('workflow-counts'), name, text)
  redis.call('HINCRBY', key('workflow-counts'), name .. ' version', 1)
  return 'stored'
end

-- Counts and their version.
function op.workflow_counts(name)
  local found = redis.call('HMGET', key('workflow-counts'), name, name .. ' version')
  return {or_false(found[1]), tonumber(found[2] or '0')}
end

-- Steps that a scheduler expects, until it replaces them or their time is over; empty: none.
function op.put_hints(owner, text, ttl_ms)
  if text == '' then
    redis.call('HDEL', key('workflow-hints'), owner)
    return redis.call('ZREM', key('workflow-hint-leases'), owner)
  end
  redis.call('HSET', key('workflow-hints'), owner, text)
  return redis.call('ZADD', key('workflow-hint-leases'), now + ttl_ms, owner)
end

-- The hints of all schedulers whose time is not over.
function op.hints()
  local over = redis.call('ZRANGEBYSCORE', key('workflow-hint-leases'), '-inf', now)
  for _, owner in ipairs(over) do redis.call('HDEL', key('workflow-hints'), owner) end
  remove_expired(key('workflow-hint-leases'))
  return redis.call('HVALS', key('workflow-hints'))
end

-- {'begun', token}; {'exists'} where another request began it.
function op.begin_run(run, head, owner, lease_ms)
  if redis.call('EXISTS', run_key(run)) == 1 then return {'exists'} end
  local token = next_fence()
  redis.call('HSET', run_key(run), 'head', head, 'owner', owner, 'token', token)
  redis.call('ZADD', key('runs'), now + lease_ms, run)
  redis.call('LPUSH', key('latest-runs'), run)
  redis.call('LTRIM', key('latest-runs'), 0, 199)
  return {'begun', token}
end

-- {run, head, status} of the latest ones that are kept; status false: under way.
function op.latest_runs()
  local found = {}
  for _, run in ipairs(redis.call('LRANGE', key('latest-runs'), 0, -1)) do
    local fields = redis.call('HMGET', run_key(run), 'head', 'status')
    if fields[1] then found[#found + 1] = {run, fields[1], or_false(fields[2])} end
  end
  return found
end

-- `index`: how many entries precede it; 'gap' where not as many are here, since what is behind a gap
-- would be taken for what came next. False: the caller does not own the run any more.
function op.append_run(run, token, index, entry)
  if not owns(run, token) then return false end
  if redis.call('LLEN', entries_key(run)) ~= index then return 'gap' end
  redis.call('RPUSH', entries_key(run), entry)
  return true
end

-- False: the caller does not own the run any more.
function op.replace_run_entries(run, token, entries)
  if not owns(run, token) then return false end
  redis.call('DEL', entries_key(run))
  for _, entry in ipairs(entries) do redis.call('RPUSH', entries_key(run), entry) end
  return true
end

function op.end_run(run, token, result, status, kept_ms)
  if not owns(run, token) then return false end
  redis.call('HSET', run_key(run), 'result', result, 'status', status)
  redis.call('PEXPIRE', run_key(run), kept_ms)
  redis.call('DEL', entries_key(run))
  redis.call('ZREM', key('runs'), run)
  return true
end

-- runs: {run, token} each; the runs that the caller does not own any more.
function op.renew_runs(runs, lease_ms)
  local lost = {}
  for _, item in ipairs(runs) do
    if owns(item[1], item[2]) then
      redis.call('ZADD', key('runs'), now + lease_ms, item[1])
    else
      lost[#lost + 1] = item[1]
    end
  end
  return lost
end

-- Runs whose owner is gone, at most `count`: {run, token, head, entries, cancelled} each.
function op.take_runs(owner, lease_ms, count)
  local taken = {}
  for _, run in ipairs(redis.call('ZRANGEBYSCORE', key('runs'), '-inf', now, 'LIMIT', 0, count)) do
    local head = redis.call('HGET', run_key(run), 'head')
    if head then
      local token = next_fence()
      redis.call('HSET', run_key(run), 'owner', owner, 'token', token)
      redis.call('ZADD', key('runs'), now + lease_ms, run)
      taken[#taken + 1] = {run, token, head, redis.call('LRANGE', entries_key(run), 0, -1),
        redis.call('HEXISTS', run_key(run), 'cancel') == 1}
    else
      redis.call('ZREM', key('runs'), run)
    end
  end
  return taken
end

-- {head, owner, result, cancelled}; false for a run that does not exist.
function op.run(run)
  local fields = redis.call('HMGET', run_key(run), 'head', 'owner', 'result', 'cancel')
  if not fields[1] then return false end
  return {fields[1], fields[2], or_false(fields[3]), fields[4] and true or false}
end

-- Its owner sees the mark with its next renewal. False: the run does not exist or has ended.
function op.cancel_run(run)
  if redis.call('EXISTS', run_key(run)) == 0 then return false end
  if redis.call('HEXISTS', run_key(run), 'result') == 1 then return false end
  redis.call('HSET', run_key(run), 'cancel', 1)
  return true
end

-- Which of these runs are to be cancelled.
function op.cancelled_runs(runs)
  local found = {}
  for _, run in ipairs(runs) do
    if redis.call('HEXISTS', run_key(run), 'cancel') == 1 then found[#found + 1] = run end
  end
  return found
end
