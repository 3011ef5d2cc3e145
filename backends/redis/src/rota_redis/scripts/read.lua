-- SPDX-License-Identifier: MIT
-- The time, and the record as it is.
local record, raw = read(KEYS[1])
return {now_text, raw}
