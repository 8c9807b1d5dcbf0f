-- The run of a batch. ARGV[1] is its origin; then come calls: `op`, 1 and an operation as JSON or,
-- since they are many, of reservations: a name, their number and their ids, after `at` and terms.
-- Changes are published once per batch, under one new version: all of them to gateways; to pods
-- without the counts and steps, which change with every request, and without `unshared`.

local terms
local answers, index = {}, 2

-- The next `count` arguments.
local function take(count)
  index = index + count
  return {unpack(ARGV, index - count, index - 1)}
end

local function run(text)
  local call = cjson.decode(text)
  if not op[call[1]] then define_others() end
  known = {}
  return 1, cjson.encode((op[call[1]](unpack(call, 2))))
end

-- How many of a call's operations were granted, their answer, and that of the others.
local function add_answer(ok, granted, answer, refusal)
  if not ok then  -- it must neither stop the others nor hide what they have written
    refusal = {err = type(granted) == 'table' and granted.err or tostring(granted)}
    granted, answer = 0, nil
  end
  answers[#answers + 1] = {granted, answer or false, refusal or false}
end

while ARGV[index] do
  local name = take(1)[1]
  if name == 'at' then
    terms = take(9)
    for _, place in ipairs({1, 6, 7, 8, 9}) do terms[place] = tonumber(terms[place]) end
  else
    local texts = take(tonumber(take(1)[1]))
    if name == 'op' then
      add_answer(pcall(run, texts[1]))
    else
      add_answer(pcall(op[name], texts, unpack(terms)))
    end
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
for _, each in ipairs(unshared) do changes[#changes + 1] = each end
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
