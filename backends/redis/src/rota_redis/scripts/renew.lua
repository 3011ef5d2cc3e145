-- SPDX-License-Identifier: MIT
-- rules.renew for any number of names: the time, then 1 or 0 for each. L3: the remaining time is set, never added to.
local held = {}
for index, key in ipairs(KEYS) do
  local record, raw = read(key)
  local owner, ttl, retention = string.match(ARGV[index], '^(.*)\n(.*)\n(.*)$')
  if record and record[OWNER] == owner and tonumber(record[EXPIRES]) > now then
    local expires = now + ttl
    record[EXPIRES] = int(expires)
    record[KEEP] = int(math.max(tonumber(record[KEEP]), expires + retention))
    write(key, record, history_of(record, raw))
    held[index] = '1'
  else
    held[index] = '0'
  end
end
return now_text .. '\n' .. table.concat(held)
