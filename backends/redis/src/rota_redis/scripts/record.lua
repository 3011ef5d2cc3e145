-- SPDX-License-Identifier: MIT
-- The head of every script: the store's time, the record as it is kept, and waking those who wait for a name.
-- A line of the driver goes before it and sets TOUCH. KEYS[2] and KEYS[3], if given, are of those who wait for the name.

-- once: two calls in one script differ (7.0.15). A double holds microseconds exactly until the year 2255
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local DAY = 86400000000

-- tostring() would lose digits of microseconds
local function int(number) return string.format('%.0f', number) end
local now_text = int(now)

-- One string holds a record: its fields as text, a line each, and last the history, which may hold any bytes. Empty is None.
local FORMAT, KIND, OWNER, LAST_OWNER, EXPIRES, MARK, START, FINISH, LAST_RESULT, ATTEMPTS, TOKEN, OUTCOME, SETTLED, PRIOR, LAST_EXPIRED, KEEP,
  SCHEDULE, ZONE, LABEL, GRANTED, HISTORY_AT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21
local RECORD = '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n' ..
  '([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n()'

-- the history is long: it is taken out only where it is needed
local function take_apart(raw)
  local record = {string.match(raw, RECORD)}
  if record[FORMAT] ~= '1' then error('ROTAFORMAT another format of rota, or not rota, is kept here') end
  return record
end
local function read(key)
  local raw = redis.call('GET', key)
  if not raw then return nil, '' end
  return take_apart(raw), raw
end
local function history_of(record, raw) return string.sub(raw, record[HISTORY_AT]) end

-- R3: the key goes by itself once R1 lets the record go: at keep_until, with no live lease, a day after its token was made
local function write(key, record, history)
  local head = table.concat(record, '\n', FORMAT, GRANTED) .. '\n'
  local raw = head .. history
  local until_ = math.max(tonumber(record[KEEP]), tonumber(record[EXPIRES]), tonumber(record[TOKEN]) + DAY, now)
  redis.call('SET', key, raw, 'PXAT', int(math.ceil(until_ / 1000) + 1))
  return raw, head
end

-- an answer that changes nothing still counts for WAIT only if this connection has written
local function touch(key, raw)
  if TOUCH then redis.call('SET', key, raw, 'KEEPTTL') end
end

-- L1, by this clock alone: at the very instant of its end nobody holds a lease
local function is_live(record) return record ~= nil and record[OWNER] ~= '' and tonumber(record[EXPIRES]) > now end

-- L2: larger than the last one, and than that of any wiped store before
local function next_token(record)
  return record and tonumber(record[TOKEN]) >= now and int(record[TOKEN] + 1) or now_text
end

-- Wake who is first in line, if anybody waits: KEYS[2] is there as long as somebody does, and a BLPOP of KEYS[3] ends. Where nobody takes it,
-- it goes by itself. pcall: the record is written, so a right or memory that is missing must not turn the answer into an error.
local function tell()
  if KEYS[2] and redis.pcall('EXISTS', KEYS[2]) == 1 and redis.pcall('EXISTS', KEYS[3]) == 0 then
    redis.pcall('RPUSH', KEYS[3], '')
    redis.pcall('PEXPIRE', KEYS[3], 1000)
  end
end
