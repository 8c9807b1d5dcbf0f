-- Arrivals per model, counted by gateways: seconds for ten minutes, minutes for two days, spans of
-- ten minutes for two weeks. A hash per span holds the models that had some, so zeros cost nothing.
-- Beside them, how many requests wait at each gateway, believed for five seconds.

local spans = {second = {1, 600}, minute = {60, 176400}, ten = {600, 1213200}}
local WAITING_MS = 5000
local MOST_PAIRS = 5000  -- of one answer: a large one would keep requests waiting

local function count(model, number, at_s)
  for name, span in pairs(spans) do
    local hash = key('arrivals:' .. name .. ':' .. math.floor(at_s / span[1]))
    redis.call('HINCRBY', hash, model, number)
    redis.call('EXPIRE', hash, span[2])
  end
end

-- counts: {model, number, seconds ago} each. A report whose reply was lost comes again under its
-- old sequence number, and is counted once.
function op.arrivals(gateway, sequence, counts, waiting)
  if next(waiting) then
    redis.call('HSET', key('waiting'), gateway, cjson.encode({now, waiting}))
  else
    redis.call('HDEL', key('waiting'), gateway)
  end
  local told = key('told:' .. gateway)
  if tonumber(redis.call('GET', told) or 0) >= sequence then return 0 end
  redis.call('SET', told, sequence, 'EX', 3600)
  local counted = 0
  for _, each in ipairs(counts) do
    if redis.call('HEXISTS', key('models'), each[1]) == 1 then
      count(each[1], each[2], math.floor(now / 1000) - each[3])
      counted = counted + each[2]
    end
  end
  return counted
end

-- Spans from `first` to `last` that had arrivals, and the span to go on from where not all are here.
function op.arrivals_in(kind, first, last)
  local found, pairs_total = {}, 0
  for span = first, last do
    local counts = redis.call('HGETALL', key('arrivals:' .. kind .. ':' .. span))
    if #counts > 0 then found[#found + 1] = {span, counts} end
    pairs_total = pairs_total + #counts / 2 + 1
    if pairs_total >= MOST_PAIRS then return {found, span + 1} end
  end
  return {found, last + 1}
end

-- What waits now, per gateway: {model: {requests, starved, oldest arrival in ms}}.
function op.waiting()
  local found = {}
  local all = redis.call('HGETALL', key('waiting'))
  for index = 1, #all, 2 do
    local told = cjson.decode(all[index + 1])
    if told[1] + WAITING_MS < now then
      redis.call('HDEL', key('waiting'), all[index])
    else
      found[#found + 1] = told[2]
    end
  end
  return found
end
