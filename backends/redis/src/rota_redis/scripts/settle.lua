-- SPDX-License-Identifier: MIT
-- rules.settle: 1 if applied, the result, 1 if the lease had run out, the time, 1 if the history is in what follows, a line each; and the
-- record, but for the history that the caller has given in ARGV[2].
local key = KEYS[1]
local record, raw = read(key)
local owner, result, retention = string.match(ARGV[1], '^([^\n]*)\n([^\n]*)\n([^\n]*)$')

local function answer(applied, how, expired, head)
  return {applied .. '\n' .. how .. '\n' .. expired .. '\n' .. now_text .. '\n' .. (head and '0' or '1'), head or raw}
end

if not record then return answer('0', '', '0') end
local expired = '0'
if record[OWNER] == owner then
  if tonumber(record[EXPIRES]) <= now then expired = '1' end                                        -- W3a: nobody follows
elseif record[OWNER] == '' and record[LAST_OWNER] == owner then
  if record[LAST_RESULT] ~= 'overlap' then                                                          -- L4: as it did the first time
    touch(key, raw)
    return answer('1', record[LAST_RESULT], record[LAST_EXPIRED])
  end
else
  return answer('0', '', '0')                                                                       -- L4: nothing of a successor
end
if record[KIND] == 'lease' then
  record[OUTCOME] = result
elseif result == 'handled' or result == 'gave up' then                                              -- W3, W3c
  if record[KIND] == 'rolling' or record[MARK] == '' or tonumber(record[MARK]) < (tonumber(record[START]) or 0) then
    record[MARK] = record[START]
  end
  record[OUTCOME] = result
elseif result == 'failed' then
  record[OUTCOME] = result
elseif result == 'unused' then                                                                      -- W3b: unseal
  if record[OUTCOME] == 'sealed' and record[MARK] == record[START] then record[MARK] = record[PRIOR] end
  record[OUTCOME] = ''
  record[ATTEMPTS] = math.max(0, record[ATTEMPTS] - 1)
end
local gone = record[OWNER]
record[OWNER], record[EXPIRES], record[LAST_OWNER], record[LAST_RESULT], record[LAST_EXPIRED] = '', '0', owner, result, expired
record[PRIOR], record[SETTLED] = '', now_text
record[KEEP] = int(math.max(tonumber(record[KEEP]), now + retention))                               -- R1
local head
raw, head = write(key, record, ARGV[2] or history_of(record, raw))
if gone ~= '' then tell() end
return answer('1', result, expired, ARGV[2] and head)
