-- SPDX-License-Identifier: MIT
-- rules.forget: a tombstone with a larger token takes the record's place (R2); 1 if there was a record.
local key = KEYS[1]
local record = read(key)
if not record or record[KIND] == '' then return '0' end
write(key, {'1', '', '', '', '0', '', '', '', '', '0', next_token(record), '', '0', '', '0', int(now + DAY), '', '', '', '0'}, '')
if record[OWNER] ~= '' then tell() end
return '1'
