-- SPDX-License-Identifier: MIT
-- rules.override, answered like settle.lua: whoever holds the name is fenced by the raised token.
local key = KEYS[1]
local record, raw = read(key)
local action, label, retention, mark, expected = string.match(ARGV[1], '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$')

local function answer(applied, how) return {applied .. '\n' .. how .. '\n0\n' .. now_text .. '\n1', raw} end

if not record or record[KIND] == '' or (expected ~= '' and expected ~= record[TOKEN]) then return answer('0', '') end
if action == 'mark' then
  record[MARK], record[ATTEMPTS] = mark, '0'  -- W3c: a slot that is open again has all its attempts
elseif action == 'handled' and record[START] ~= '' then
  if record[MARK] == '' or tonumber(record[MARK]) < tonumber(record[START]) then record[MARK] = record[START] end
  record[OUTCOME] = 'handled'
elseif action == 'failed' or action == 'released' then
  if action == 'failed' and record[OUTCOME] == 'sealed' and record[MARK] == record[START] then record[MARK] = record[PRIOR] end
  if action == 'failed' or record[KIND] == 'lease' then record[OUTCOME] = action end
end
local gone = record[OWNER]
record[TOKEN] = next_token(record)                                                                  -- L2
record[OWNER], record[EXPIRES], record[LABEL] = '', '0', label
record[LAST_OWNER], record[LAST_RESULT], record[LAST_EXPIRED] = 'operator', action, '0'
if record[OUTCOME] ~= 'sealed' then record[PRIOR] = '' end                                         -- W3b: what `failed` goes back to
record[SETTLED] = now_text
record[KEEP] = int(math.max(tonumber(record[KEEP]), now + retention))
raw = write(key, record, ARGV[2] or history_of(record, raw))
if gone ~= '' then tell() end
return answer('1', action)
