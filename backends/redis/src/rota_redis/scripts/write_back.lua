-- SPDX-License-Identifier: MIT
-- rules.write_back, answered like settle.lua: mark = max(mark, slot); a holder at work is left alone (F3).
local key = KEYS[1]
local record, raw = read(key)
local label, kind, retention, schedule, zone, start, finish =
  string.match(ARGV[1], '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$')

local function answer(applied)
  return {applied .. '\n' .. (applied == '1' and 'handled' or '') .. '\n0\n' .. now_text .. '\n1', raw}
end

local upto = tonumber(finish) or tonumber(start)
if not record or record[KIND] == '' then
  local made = record or {'1', '', '', '', '0', '', '', '', '', '0', now_text, '', '0', '', '0', '0', '', '', '', '0'}
  made[KIND], made[SCHEDULE], made[ZONE], made[LABEL], made[MARK], made[START], made[FINISH] = kind, schedule, zone, label, start, start, finish
  made[OUTCOME], made[SETTLED], made[KEEP] = 'degraded', now_text, int(math.max(tonumber(made[KEEP]), math.max(upto, now) + retention))
  raw = write(key, made, record and history_of(record, raw) or '')
  return answer('1')
end
if record[KIND] ~= kind then return answer('0') end                                                 -- W8
if kind == 'rolling' and (is_live(record) or (tonumber(record[FINISH]) or 0) >= (tonumber(finish) or 0)) then return answer('0') end
local moves = record[MARK] == '' or tonumber(record[MARK]) < tonumber(start)
if moves then
  record[MARK] = start
elseif record[OUTCOME] == 'sealed' and record[MARK] == record[START] then                           -- W3b: what `unused` falls back to
  if record[PRIOR] == '' or tonumber(record[PRIOR]) < tonumber(start) then record[PRIOR] = start end
end
record[KEEP] = int(math.max(tonumber(record[KEEP]), upto + retention))                              -- R1
-- an owner that has not settled, live or run out, keeps its grant (W3a)
if moves and (record[OWNER] == '' or kind == 'rolling') and (record[START] == '' or tonumber(record[START]) <= tonumber(start)) then
  if schedule ~= '' then record[SCHEDULE] = schedule end
  if zone ~= '' then record[ZONE] = zone end
  record[LABEL], record[START], record[FINISH], record[OUTCOME], record[SETTLED] = label, start, finish, 'degraded', now_text
end
raw = write(key, record, history_of(record, raw))
return answer('1')
