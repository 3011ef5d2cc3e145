-- SPDX-License-Identifier: MIT
-- rules.claim: the verdict and the time, a line each; the record; and what a grant replaced, but for its history, which is the same.
local key = KEYS[1]
local raw = redis.call('GET', key) or ''
local owner, label, kind, ttl, apply_until, retention, rest =
  string.match(ARGV[1], '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n()')

local schedule, zone, start, finish, not_before, late_from, period, seal, overlap, most = '', '', '', '', '0', '', '0', '0', '0', '0'
if string.sub(ARGV[1], rest) ~= '\n\n\n\n0\n\n0\n0\n0\n0' then  -- as for every plain lease
  schedule, zone, start, finish, not_before, late_from, period, seal, overlap, most =
    string.match(ARGV[1], '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$', rest)
end

local function answer(verdict, before)
  -- who was woken and holds nothing now wakes the next in line
  if KEYS[2] and verdict ~= 'busy' and (verdict ~= 'won' or overlap == '1') then tell() end
  return {verdict .. '\n' .. now_text, raw, before}
end

-- what is asked for most is what somebody else holds or has handled: it is told before the rest of the record is taken apart
local known, held_by, last_owner, expires, mark = string.match(raw, '^1\n([^\n]+)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n')
if known == kind and held_by ~= owner and last_owner ~= owner and now <= tonumber(apply_until) then
  if kind == 'lease' and held_by ~= '' and tonumber(expires) > now then return answer('busy') end
  if kind == 'window' and now >= tonumber(not_before) and mark ~= '' and tonumber(start) <= tonumber(mark) then return answer('handled') end
end
local record = raw ~= '' and take_apart(raw) or nil

-- W3c: the last attempt ran out, and its owner did not close the slot; it may still settle, since nobody was granted more (W3a)
local function is_used_up() return tonumber(most) > 0 and tonumber(record[ATTEMPTS]) >= tonumber(most) end
local function close()
  record[MARK], record[OUTCOME], record[SETTLED] = record[START], 'gave up', now_text
  raw = write(key, record, history_of(record, raw))
  return answer('handled')
end

-- L7: found again, or ran out in the meantime; L4: never granted again
if record and (record[OWNER] == owner or record[LAST_OWNER] == owner) then
  touch(key, raw)
  if record[OWNER] == owner then return answer(tonumber(record[EXPIRES]) > now and 'won' or 'finished') end
  return answer(record[LAST_RESULT] == 'overlap' and 'won' or 'finished')
end
if now > tonumber(apply_until) then return answer('stale') end                                                   -- L7
if record and record[KIND] ~= '' and record[KIND] ~= kind then return answer('mismatch') end                     -- W8
local live = is_live(record)
local again = false

if kind == 'window' then                                                                                         -- W2, in this order
  if now < tonumber(not_before) then return answer('early') end
  if record then
    if record[MARK] ~= '' and tonumber(start) <= tonumber(record[MARK]) then return answer('handled') end
    again = record[START] == start
    if again and live then return answer('busy') end
    if again and is_used_up() then return close() end
  end
  if late_from ~= '' and now >= tonumber(late_from) then return answer('late') end
elseif kind == 'rolling' and record then                                                                         -- W12
  local ends = tonumber(record[FINISH]) or 0
  if record[MARK] ~= '' and record[MARK] == record[START] and now < ends then return answer('handled') end
  again = now < ends and record[MARK] ~= record[START]
  if not live and again and is_used_up() then return close() end
end
if live then return answer('busy') end

if kind == 'rolling' then
  -- a clock that went back must not give two periods one start
  local from = record and record[MARK] ~= '' and math.max(now, tonumber(record[MARK]) + 1) or now
  start, finish = int(from), int(from + period)
end
local before, history = '', ''
if record then
  before, history = string.sub(raw, 1, record[HISTORY_AT] - 1), history_of(record, raw)
end
local held = record or {[LAST_OWNER] = '', [LAST_RESULT] = '', [LAST_EXPIRED] = '0', [MARK] = '', [SETTLED] = '0'}
local ends_at = overlap == '1' and 0 or now + ttl
local sealed = seal == '1' and kind ~= 'lease'
raw = write(key, {
  '1', kind,
  overlap == '1' and '' or owner,                                                                                -- W4: a token, no lease
  overlap == '1' and owner or held[LAST_OWNER],
  int(ends_at),
  sealed and start or held[MARK],                                                                                -- W3b
  start, finish,
  overlap == '1' and 'overlap' or held[LAST_RESULT],
  again and record[ATTEMPTS] + 1 or 1,                                                                           -- W3c: crashes count
  next_token(record),
  sealed and 'sealed' or 'pending',
  held[SETTLED],
  sealed and held[MARK] or '',
  overlap == '1' and '0' or held[LAST_EXPIRED],
  int(math.max(tonumber(finish) or tonumber(start) or 0, ends_at, now) + retention),                             -- R1
  schedule, zone, label, now_text,
}, history)
return answer('won', before)
