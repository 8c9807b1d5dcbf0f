-- Arrivals per model, counted by gateways: seconds for ten minutes, minutes for two days, windows
-- of ten minutes for two weeks. A hash per window holds only the models with arrivals. Also the
-- queue lengths of each gateway, valid for five seconds.

-- Length and time to live in seconds.
local windows = {second = {1, 600}, minute = {60, 176400}, ten = {600, 1213200}}
local QUEUE_STATS_MS = 5000
local MAX_PAIRS = 5000  -- of one reply: a large one would delay requests

local function count(model, number, at_s)
  for name, window in pairs(windows) do
    local hash = key('arrivals:' .. name .. ':' .. math.floor(at_s / window[1]))
    redis.call('HINCRBY', hash, model, number)
    redis.call('EXPIRE', hash, window[2])
  end
end

-- counts: {model, number, seconds ago} each. A report whose reply was lost is sent again with the
-- same sequence number, and counts once.
-- The first queued request of a pool, and the end of the last queue, are published.
function op.arrivals(gateway, sequence, counts, queued)
  local waited = redis.call('EXISTS', key('waiting'))
  if next(queued) then
    redis.call('HSET', key('waiting'), gateway, cjson.encode({now, queued}))
  else
    redis.call('HDEL', key('waiting'), gateway)
  end
  local waits = redis.call('EXISTS', key('waiting'))
  if waits ~= waited then unshared[#unshared + 1] = {'waiting', waits} end
  local last = key('told:' .. gateway)
  if tonumber(redis.call('GET', last) or 0) >= sequence then return 0 end
  redis.call('SET', last, sequence, 'EX', 3600)
  local counted = 0
  for _, each in ipairs(counts) do
    if redis.call('HEXISTS', key('models'), each[1]) == 1 then
      count(each[1], each[2], math.floor(now / 1000) - each[3])
      counted = counted + each[2]
    end
  end
  return counted
end

-- Windows from `first` to `last` with arrivals, and the window to continue from where the reply is
-- incomplete.
function op.arrivals_in(kind, first, last)
  local found, pairs_total = {}, 0
  for window = first, last do
    local counts = redis.call('HGETALL', key('arrivals:' .. kind .. ':' .. window))
    if #counts > 0 then found[#found + 1] = {window, counts} end
    pairs_total = pairs_total + #counts / 2 + 1
    if pairs_total >= MAX_PAIRS then return {found, window + 1} end
  end
  return {found, last + 1}
end

-- Queued requests per gateway: {model: {requests, starved, oldest arrival in ms}}.
function op.waiting()
  local found = {}
  local all = redis.call('HGETALL', key('waiting'))
  for index = 1, #all, 2 do
    local report = cjson.decode(all[index + 1])
    if report[1] + QUEUE_STATS_MS < now then
      redis.call('HDEL', key('waiting'), all[index])
    else
      found[#found + 1] = report[2]
    end
  end
  if #all > 0 and #found == 0 then unshared[#unshared + 1] = {'waiting', 0} end
  return found
end
