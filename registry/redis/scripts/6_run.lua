-- The run of a batch. ARGV[1] is its origin; then come operations: `op` and one as JSON or, since
-- they are many, of reservations: `at` and terms, then each with these terms as its name, the number
-- of reservations, and their ids. Changes are published once per batch, under one new version: all of
-- them to gateways; to pods without the counts and steps, which change with every request, and
-- without expected arrivals.

local terms
local answers, index = {}, 2

-- The next `count` arguments.
local function take(count)
  index = index + count
  return {unpack(ARGV, index - count, index - 1)}
end

local function run(call)
  if not op[call[1]] then define_others() end
  known = {}
  return 1, cjson.encode((op[call[1]](unpack(call, 2))))
end

local function answer(count, ok, granted, answered, refusal)
  if not ok then  -- it must neither stop the others nor hide what they have written
    granted, refusal = 0, {err = type(granted) == 'table' and granted.err or tostring(granted)}
  end
  for place = 1, count do answers[#answers + 1] = place > granted and refusal or answered end
end

while ARGV[index] do
  local name = take(1)[1]
  if name == 'at' then
    terms = take(9)
    for _, place in ipairs({1, 6, 7, 8, 9}) do terms[place] = tonumber(terms[place]) end
  elseif name == 'op' then
    answer(1, pcall(run, cjson.decode(take(1)[1])))
  else
    local ids = take(tonumber(take(1)[1]))
    answer(#ids, pcall(op[name], ids, unpack(terms)))
  end
end

local function publish(channel, counter)
  local version = redis.call('INCR', key(counter))
  if version == 1 then
    version = now * 10
    redis.call('SET', key(counter), version)
  end
  local encoded = cjson.encode(changes)
  redis.call('PUBLISH', key(channel), version .. ' ' .. now .. ' ' .. ARGV[1] .. ' ' .. encoded)
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
return {version, news_version, now, encoded, answers}
