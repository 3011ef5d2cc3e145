-- SPDX-License-Identifier: MIT
-- The verbs that change a record, each one call and so one statement. They say in SQL what rota.rules says in Python, in its order, and
-- return what the rules need to say the same: the store's time, whether they changed the record, and the record found.
--
-- {table}, {function} and {clock} are filled in by _sql.py; parameters are the fields of the request (rota.backend), in their order.
-- Under READ COMMITTED every statement in here sees what was committed when it began. So a claim reads the clock in the statement that
-- looks at the record (in a subquery, so that it is read once): a grant is never older than the settlement that it follows.
--
-- What costs is not the work but setting it up, by every call anew: a statement pays for each column and parameter that it names, and each
-- expression outside of one for itself. So what is asked of the row is asked by the statement that reads it, rows are read as one value,
-- and leases and plain windows have claims of their own. Every table has an alias, since its name may be that of a variable.

-- {otherwise}: how each claim goes on that found nothing to grant, and ends
ELSIF seen.now >= _late_from AND late IS NULL THEN
      late := true; -- W2: handled comes first, and may have come between the look and the time: the next look is behind a time that was late
    ELSIF FOUND THEN
      IF made THEN
        DELETE FROM {table} AS r WHERE r.name = _name;
      ELSIF current_setting('transaction_read_only')::boolean THEN -- a standby may be behind, so it has no say (SQLSTATE 25006)
        RAISE read_only_sql_transaction USING MESSAGE = 'rota: this server is read-only';
      END IF;
      RETURN seen;
    ELSE
      now := {clock};
      IF now >= _late_from AND late IS NULL THEN
        late := true;
        CONTINUE;
      ELSIF now > _apply_until OR now < _not_before OR now >= _late_from THEN
        seen.now := now;
        seen.done := false;
        RETURN seen;
      END IF;
      INSERT INTO {table} (name, token, keep_until) VALUES (_name, 0, 'epoch') ON CONFLICT DO NOTHING; -- token 0: there was none
      made := FOUND;
    END IF;
  END LOOP;
  -- L7: the change may have waited for somebody who held the row and left it as it was. All else has only become truer meanwhile.
  IF {clock} > _apply_until THEN
    RAISE lock_not_available USING MESSAGE = 'rota: this claim waited for its row for longer than it may';
  END IF;
  RETURN seen;
END {quote};

CREATE OR REPLACE FUNCTION {lease}(
  _name text, _owner text, _label text, _kind text, _ttl interval, _apply_until timestamptz, _retention interval
) RETURNS record LANGUAGE plpgsql AS {quote}
#variable_conflict use_column
DECLARE
  now timestamptz;
  seen record;
  made boolean;
  late boolean;
  _not_before timestamptz; -- none
  _late_from timestamptz;
BEGIN
  LOOP
    -- a refused claim only looks: it locks nothing, writes nothing and waits for nobody
    SELECT now, (
        r.owner = _owner OR r.last_owner = _owner -- L7, L4: mine, finished
        OR now > _apply_until -- L7: stale
        OR r.kind NOT IN ('', _kind) -- W8: mismatch
        OR r.owner <> '' AND r.expires_at > now -- L1: busy
      ) IS NOT TRUE AS done, r AS before, r.ctid AS place, r.xmin AS version
    INTO seen FROM (SELECT {clock} AS now) AS clock, {table} AS r WHERE r.name = _name;
    IF seen.done THEN
      -- what was looked at is changed if it is that still; else the next look says what it is now
      UPDATE {table} AS r SET
        kind = _kind, label = _label, granted_at = seen.now, owner = _owner, expires_at = seen.now + _ttl, attempts = 1,
        outcome = 'pending',
        token = greatest(r.token + 1, (extract(epoch FROM seen.now) * 1000000)::bigint), -- L2
        keep_until = seen.now + _ttl + _retention -- R1
      WHERE r.ctid = seen.place AND r.xmin = seen.version;
      EXIT WHEN FOUND;
    {otherwise}

CREATE OR REPLACE FUNCTION {window}(
  _name text, _owner text, _label text, _kind text, _ttl interval, _apply_until timestamptz, _retention interval, _schedule text,
  _zone_data text, _start timestamptz, _end timestamptz, _not_before timestamptz, _late_from timestamptz
) RETURNS record LANGUAGE plpgsql AS {quote}
#variable_conflict use_column
DECLARE
  now timestamptz;
  seen record;
  made boolean;
  late boolean;
BEGIN
  LOOP
    SELECT now, (
        r.owner = _owner OR r.last_owner = _owner -- L7, L4: mine, finished
        OR now > _apply_until -- L7: stale
        OR r.kind NOT IN ('', _kind) -- W8: mismatch
        OR now < _not_before OR _start <= r.mark -- W5, W2: early, handled
        OR r.owner <> '' AND r.expires_at > now -- L1: busy
        OR now >= _late_from -- W6: late
      ) IS NOT TRUE AS done, r AS before, r.ctid AS place, r.xmin AS version
    INTO seen FROM (SELECT {clock} AS now) AS clock, {table} AS r WHERE r.name = _name;
    IF seen.done THEN
      UPDATE {table} AS r SET
        kind = _kind, schedule = _schedule, zone_data = _zone_data, label = _label, granted_at = seen.now,
        slot_start = _start, slot_end = _end,
        token = greatest(r.token + 1, (extract(epoch FROM seen.now) * 1000000)::bigint), -- L2
        owner = _owner, expires_at = seen.now + _ttl, prior_mark = NULL, outcome = 'pending',
        attempts = CASE WHEN r.slot_start = _start THEN r.attempts + 1 ELSE 1 END, -- W3c
        keep_until = greatest(coalesce(_end, _start), seen.now + _ttl) + _retention -- R1
      WHERE r.ctid = seen.place AND r.xmin = seen.version;
      EXIT WHEN FOUND;
    {otherwise}

CREATE OR REPLACE FUNCTION {claim}(
  _name text, _owner text, _label text, _kind text, _ttl interval, _apply_until timestamptz, _retention interval, _schedule text,
  _zone_data text, _start timestamptz, _end timestamptz, _not_before timestamptz, _late_from timestamptz, _period interval, _seal boolean,
  _overlap boolean, _most integer
) RETURNS record LANGUAGE plpgsql AS {quote}
#variable_conflict use_column
DECLARE
  now timestamptz;
  seen record;
  made boolean;
  late boolean;
BEGIN
  LOOP
    SELECT now, (
        r.owner = _owner OR r.last_owner = _owner -- L7, L4: mine, finished
        OR now > _apply_until -- L7: stale
        OR r.kind NOT IN ('', _kind) -- W8: mismatch
        OR now < _not_before -- W5: early
        OR CASE _kind WHEN 'window' THEN _start <= r.mark ELSE r.mark = r.slot_start AND now < r.slot_end END -- W2, W12: handled
        OR r.owner <> '' AND r.expires_at > now -- L1: busy
        -- W6: late; not if it closes its slot
        OR now >= _late_from AND (r.slot_start = _start AND _most > 0 AND r.attempts >= _most) IS NOT TRUE
      ) IS NOT TRUE AS done, r AS before, r.ctid AS place, r.xmin AS version, r.mark, r.attempts,
      CASE _kind WHEN 'window' THEN r.slot_start = _start ELSE now < r.slot_end AND r.mark IS DISTINCT FROM r.slot_start END AS again
    INTO seen FROM (SELECT {clock} AS now) AS clock, {table} AS r WHERE r.name = _name;
    IF seen.done THEN
      IF _kind = 'rolling' THEN
        _start := greatest(seen.now, seen.mark + interval '1 microsecond'); -- a clock that went back: not one start twice
        _end := _start + _period;
      END IF;
      IF _most > 0 AND seen.again AND seen.attempts >= _most THEN -- W3c: its last attempt ran out
        UPDATE {table} AS r SET mark = r.slot_start, outcome = 'gave up', settled_at = seen.now
        WHERE r.ctid = seen.place AND r.xmin = seen.version;
      ELSIF _seal THEN
        UPDATE {table} AS r SET
          kind = _kind, schedule = _schedule, zone_data = _zone_data, label = _label, granted_at = seen.now,
          slot_start = _start, slot_end = _end,
          token = greatest(r.token + 1, (extract(epoch FROM seen.now) * 1000000)::bigint), -- L2
          owner = CASE WHEN _overlap THEN '' ELSE _owner END, -- W4
          expires_at = CASE WHEN _overlap THEN 'epoch' ELSE seen.now + _ttl END,
          last_owner = CASE WHEN _overlap THEN _owner ELSE r.last_owner END,
          last_result = CASE WHEN _overlap THEN 'overlap' ELSE r.last_result END,
          last_expired = r.last_expired AND NOT _overlap,
          mark = _start, prior_mark = r.mark, outcome = 'sealed', -- W3b
          attempts = CASE WHEN seen.again THEN r.attempts + 1 ELSE 1 END, -- W3c
          keep_until = greatest(coalesce(_end, _start), seen.now, CASE WHEN NOT _overlap THEN seen.now + _ttl END) + _retention -- R1
        WHERE r.ctid = seen.place AND r.xmin = seen.version;
      ELSE
        UPDATE {table} AS r SET
          kind = _kind, schedule = _schedule, zone_data = _zone_data, label = _label, granted_at = seen.now,
          slot_start = _start, slot_end = _end,
          token = greatest(r.token + 1, (extract(epoch FROM seen.now) * 1000000)::bigint), -- L2
          owner = _owner, expires_at = seen.now + _ttl, prior_mark = NULL, outcome = 'pending',
          attempts = CASE WHEN seen.again THEN r.attempts + 1 ELSE 1 END, -- W3c
          keep_until = greatest(coalesce(_end, _start), seen.now + _ttl) + _retention -- R1
        WHERE r.ctid = seen.place AND r.xmin = seen.version;
      END IF;
      EXIT WHEN FOUND;
    {otherwise}

CREATE OR REPLACE FUNCTION {settle}(
  _name text, _owner text, _result text, _retention interval, _history bytea
) RETURNS record LANGUAGE plpgsql AS {quote}
#variable_conflict use_column
DECLARE
  now timestamptz;
  seen record;
  certain boolean;
BEGIN
  LOOP
    now := {clock};
    -- How nearly every grant ends, at once, and without an answer of the whole row. That expires_at stays tells behind the lock whether the
    -- lease ran out meanwhile (W3a); without an owner it says nothing. So does granted_at whether the claim came later than this (L7).
    UPDATE {table} AS r SET
      owner = '', last_owner = _owner, last_result = _result, outcome = _result, settled_at = now, prior_mark = NULL,
      last_expired = r.expires_at <= now, -- W3a
      mark = CASE WHEN r.kind = 'rolling' THEN r.slot_start ELSE greatest(r.mark, r.slot_start) END, -- W3; a lease has neither
      keep_until = greatest(r.keep_until, now + _retention), -- R1
      history = coalesce(_history, r.history)
    WHERE r.name = _name AND r.owner = _owner AND (_result = 'handled' OR _result = 'gave up' OR r.kind = 'lease') -- L4
    RETURNING now, true AS done, r.last_expired,
      r.expires_at > now AND r.expires_at <= {clock} OR r.granted_at > now AND r.granted_at <= {clock} AS late,
      r.waited = r.token AS awaited
    INTO seen;
    EXIT WHEN FOUND;
    UPDATE {table} AS r SET
      owner = '', last_owner = _owner, last_result = _result, settled_at = now, prior_mark = NULL,
      last_expired = r.owner <> '' AND r.expires_at <= now,
      mark = CASE
        WHEN _result IN ('handled', 'gave up') THEN -- W3
          CASE WHEN r.kind = 'rolling' THEN r.slot_start ELSE greatest(r.mark, r.slot_start) END
        WHEN _result = 'unused' AND r.outcome = 'sealed' AND r.mark = r.slot_start THEN r.prior_mark -- W3b
        ELSE r.mark
      END,
      outcome = CASE _result WHEN 'unused' THEN '' WHEN 'released' THEN r.outcome ELSE _result END,
      attempts = CASE _result WHEN 'unused' THEN greatest(0, r.attempts - 1) ELSE r.attempts END,
      keep_until = greatest(r.keep_until, now + _retention), -- R1
      history = coalesce(_history, r.history)
    WHERE r.name = _name AND (r.owner = _owner OR r.owner = '' AND r.last_owner = _owner AND r.last_result = 'overlap') -- L4, W4
    RETURNING now, true AS done, r.last_expired,
      r.expires_at > now AND r.expires_at <= {clock} OR r.granted_at > now AND r.granted_at <= {clock} AS late,
      r.waited = r.token AS awaited
    INTO seen;
    EXIT WHEN FOUND;
    IF certain THEN
      SELECT now, false AS done, r AS before, r.owner = _owner AS mine INTO seen FROM {table} AS r WHERE r.name = _name;
      IF seen.mine IS NOT TRUE THEN
        seen.now := now;
        seen.done := false;
        RETURN seen;
      END IF;
    ELSE
      -- L7: that this owner id holds nothing is certain only behind whoever changes the row just now; that it will not, for a name that is
      -- new, only behind whoever inserts it
      PERFORM FROM {table} AS r WHERE r.name = _name FOR UPDATE;
      certain := FOUND OR _result <> 'unused';
      IF NOT certain THEN
        INSERT INTO {table} (name, token, keep_until) VALUES (_name, 0, 'epoch') ON CONFLICT DO NOTHING;
        certain := FOUND;
        IF certain THEN
          DELETE FROM {table} AS r WHERE r.name = _name;
        END IF;
      END IF;
    END IF;
  END LOOP;
  IF seen.late OR seen.awaited THEN
    IF seen.late THEN
      RAISE lock_not_available USING MESSAGE = 'rota: the lease came, or ran out, while its settlement waited for the row';
    END IF;
    PERFORM pg_notify({channel}, _name); -- only to waiters: NOTIFYs queue up behind each other at commit
  END IF;
  RETURN seen;
END {quote};

CREATE OR REPLACE FUNCTION {forget}(_name text, OUT now timestamptz, OUT done boolean, OUT before {table}) LANGUAGE plpgsql AS {quote}
#variable_conflict use_column
BEGIN
  SELECT r.* INTO before FROM {table} AS r WHERE r.name = _name FOR UPDATE;
  now := {clock};
  done := coalesce(before.kind <> '', false);
  IF NOT done THEN
    RETURN;
  END IF;
  UPDATE {table} AS r SET -- R2: a tombstone
    kind = DEFAULT, schedule = DEFAULT, zone_data = DEFAULT, owner = DEFAULT, label = DEFAULT, granted_at = DEFAULT, expires_at = DEFAULT,
    last_owner = DEFAULT, last_result = DEFAULT, last_expired = DEFAULT, mark = DEFAULT, prior_mark = DEFAULT, slot_start = DEFAULT,
    slot_end = DEFAULT, attempts = DEFAULT, outcome = DEFAULT, settled_at = DEFAULT, history = DEFAULT, format = DEFAULT,
    token = greatest(token + 1, (extract(epoch FROM now) * 1000000)::bigint), -- L2
    keep_until = now + interval '24 hours'
  WHERE r.name = _name;
  IF before.waited = before.token THEN
    PERFORM pg_notify({channel}, _name);
  END IF;
END {quote};

CREATE OR REPLACE FUNCTION {override}(
  _name text, _action text, _label text, _retention interval, _mark timestamptz, _expected_token bigint, _history bytea,
  OUT now timestamptz, OUT done boolean, OUT before {table}
) LANGUAGE plpgsql AS {quote}
#variable_conflict use_column
BEGIN
  SELECT r.* INTO before FROM {table} AS r WHERE r.name = _name FOR UPDATE;
  now := {clock};
  done := coalesce(before.kind <> '' AND before.token = coalesce(_expected_token, before.token), false);
  IF NOT done THEN
    RETURN;
  END IF;
  UPDATE {table} AS r SET
    token = greatest(token + 1, (extract(epoch FROM now) * 1000000)::bigint), -- L2
    owner = '', expires_at = 'epoch', label = _label, last_owner = 'operator', last_result = _action, last_expired = false,
    mark = CASE
      WHEN _action = 'mark' THEN _mark
      WHEN _action = 'handled' THEN greatest(mark, slot_start)
      WHEN _action = 'failed' AND outcome = 'sealed' AND mark = slot_start THEN prior_mark -- W3b
      ELSE mark
    END,
    prior_mark = CASE
      WHEN outcome = 'sealed' AND NOT (_action = 'failed' OR _action = 'handled' AND slot_start IS NOT NULL) THEN prior_mark -- W3b
    END,
    attempts = CASE WHEN _action = 'mark' THEN 0 ELSE attempts END, -- W3c: a slot that is open again has all of them
    outcome = CASE
      WHEN _action = 'handled' AND slot_start IS NOT NULL OR _action = 'failed' OR _action = 'released' AND kind = 'lease' THEN _action
      ELSE outcome
    END,
    settled_at = now,
    keep_until = greatest(keep_until, now + _retention), -- R1
    history = coalesce(_history, history)
  WHERE r.name = _name;
  IF before.waited = before.token THEN
    PERFORM pg_notify({channel}, _name);
  END IF;
END {quote};

CREATE OR REPLACE FUNCTION {record}(
  _name text, _label text, _kind text, _retention interval, _schedule text, _zone_data text, _start timestamptz, _end timestamptz,
  OUT now timestamptz, OUT done boolean, OUT before {table}
) LANGUAGE plpgsql AS {quote}
#variable_conflict use_column
DECLARE
  w {table};
BEGIN
  LOOP
    SELECT r.* INTO before FROM {table} AS r WHERE r.name = _name FOR UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO {table} (name, token, keep_until) VALUES (_name, 0, 'epoch') ON CONFLICT DO NOTHING;
    EXIT WHEN FOUND;
  END LOOP;
  now := {clock};
  w := before;
  done := true;
  IF coalesce(before.kind = '', true) THEN
    w.kind := _kind;
    w.schedule := _schedule;
    w.zone_data := _zone_data;
    w.token := coalesce(before.token, (extract(epoch FROM now) * 1000000)::bigint);
    w.mark := _start;
    w.keep_until := greatest(before.keep_until, greatest(coalesce(_end, _start), now) + _retention);
  ELSIF before.kind <> _kind OR _kind = 'rolling' AND (
    before.owner <> '' AND before.expires_at > now OR coalesce(before.slot_end, 'epoch') >= coalesce(_end, 'epoch')
  ) THEN
    done := false;
    RETURN;
  ELSE
    IF before.mark IS NULL OR before.mark < _start THEN
      w.mark := _start;
    ELSIF before.outcome = 'sealed' AND before.mark = before.slot_start THEN
      w.prior_mark := greatest(before.prior_mark, _start); -- W3b: what unused falls back to
    END IF;
    w.keep_until := greatest(before.keep_until, coalesce(_end, _start) + _retention); -- R1
  END IF;
  IF w.mark IS DISTINCT FROM before.mark AND coalesce(before.slot_start <= _start, true)
    AND (coalesce(before.owner, '') = '' OR _kind = 'rolling')
  THEN
    w.schedule := coalesce(nullif(_schedule, ''), w.schedule);
    w.zone_data := coalesce(nullif(_zone_data, ''), w.zone_data);
    w.label := _label;
    w.slot_start := _start;
    w.slot_end := _end;
    w.outcome := 'degraded';
    w.settled_at := now;
  END IF;
  done := w IS DISTINCT FROM before;
  IF done THEN
    UPDATE {table} AS r SET
      kind = w.kind, schedule = w.schedule, zone_data = w.zone_data, token = w.token, label = coalesce(w.label, label), mark = w.mark,
      prior_mark = w.prior_mark, slot_start = w.slot_start, slot_end = w.slot_end, outcome = coalesce(w.outcome, outcome),
      settled_at = coalesce(w.settled_at, settled_at), keep_until = w.keep_until
    WHERE r.name = _name;
  END IF;
END {quote};
