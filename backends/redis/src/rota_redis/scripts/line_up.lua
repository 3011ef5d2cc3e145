-- SPDX-License-Identifier: MIT
-- What goes before a BLPOP: it is noted that somebody waits, for ARGV[2] ms, and BLPOP is let through if the owner ARGV[1] is gone already.
-- 1 if it is gone. It goes by its text (EVAL): one that had to be loaded first would have BLPOP wait for what nobody tells.
local owner = string.match(redis.call('GET', KEYS[1]) or '', '^1\n[^\n]*\n([^\n]*)\n')
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then redis.call('SET', KEYS[2], '', 'PX', ARGV[2]) end
if owner == ARGV[1] then
  redis.call('DEL', KEYS[3])                                        -- of an earlier end, when nobody stood in line
  return 0
end
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('RPUSH', KEYS[3], '')
  redis.call('PEXPIRE', KEYS[3], 1000)
end
return 1
