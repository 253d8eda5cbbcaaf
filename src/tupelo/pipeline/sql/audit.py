"""The audit in SQL that Spark and DuckDB understand alike. Both engines run the same text, except
for the order of the changes of one log, which Spark looks at in blocks (`jobs.ordered`).

An entry is (space, origin, n). It stays in a space at a host for some time: its writing begins a
stay, and the position of that change, its `arrival`, identifies the stay in later changes there. A
sound stay is

    written  (taken returned)*  [taken | moved | expired | cancelled | evicted]

An entry that left may be written again under its identity, which begins another stay: it moved to
the host of its agent; or its taker was lost, and the entry stays at the taker's host; or an agent
of LIME took it along. Two stays of one entry are sound if the first ends before the second begins.
On one host the positions decide that. Between hosts the first stay may name the destination, and
then the second one is its arrival; otherwise the clocks decide.

A table in braces is given by the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from tupelo.space.capacity import SUNK
from tupelo.values.change import BY_REACTION, ENDINGS

if TYPE_CHECKING:
    import pyarrow as pa

    from tupelo.pipeline.sql.duck import LogTable

FAULTY = ("lost", "duplicated", "taken twice", "ended twice", "never written", "returned twice")
"""The fates that are faults."""
FAULTS = (*FAULTY, "never taken", "reordered", "gap", "repeated", "empty")

_KINDS = ("written", "returned", *ENDINGS)
_TOLD = ("written", "taken", "returned", "moved", "expired", "cancelled", "evicted")
_DECISION = "kind in ('prepared', 'committed', 'aborted')"
# Ids of transactions for entries on their way to another host: see `spanning` in the federation,
# and `handover` in LIME. The first group is the host.
_TO_A_HOST = "^(?:move|handover:host|lime-(?:move|take):[^:]*):([^:]+):"
# A single entry that moves: the groups are its origin and number.
_MOVE = "^move:[^:]+:(.+):([0-9]+)$"


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(f"'{text}'" for text in texts)


def _count(condition: str) -> str:
    return f"count(case when {condition} then 1 end)"


def _undecided(decision: str) -> str:
    """The number of these transactions that are prepared and not decided."""
    step = "case when kind = 'prepared' then 1 else -1 end"
    return f"coalesce(sum(case when {decision} then {step} end), 0)"


_IS_ENDING = f"kind in ({_listed(ENDINGS)})"
_counted = ", ".join(_count(f"kind = '{kind}'") + f" as {kind}" for kind in _KINDS)
_LIVES = f"""
with spoken_of as (
  -- Of decisions about an entry that moves, only the id of the transaction names the entry.
  select c.space, c.host, c.position, c.arrival, c.time, c.kind, c.expires, c.bytes,
    coalesce(c.origin, regexp_extract(c.txn, '{_MOVE}', 1)) as origin,
    coalesce(c.n, try_cast(regexp_extract(c.txn, '{_MOVE}', 2) as bigint)) as n,
    coalesce(regexp_extract(c.txn, '{_TO_A_HOST}', 1), '') as destination
  from {{changes}} c
  where (c.kind in ('read', 'delayed', {_listed(_KINDS)}) and c.n is not null)
    or (c.{_DECISION} and c.txn like 'move:%')
),
stays as (
  -- Only numbers are aggregated, which Spark does in place: a host is the hash of its id.
  select space, origin, n, host, arrival,
    {_counted},
    -- Within a transaction an entry may be read before it is in the log.
    {_count("kind = 'read' and position > arrival")} as reads,
    -- A writing is at its arrival, other changes are later.
    {
    _count(
        "kind = 'written' and position <> arrival or kind not in ('written', 'read')"
        " and position <= arrival"
    )
} as astray,
    {_count("kind = 'moved' and expires <= time")} as lapsed,
    {_undecided(_DECISION)} as doubt,
    min(case when kind = 'written' then time end) as began,
    max(case when {_IS_ENDING} then time end) as ended_time,
    max(case when kind = 'taken' then time end) as taken_at,
    max(case when {_IS_ENDING} then position end) as ended_position,
    max_by(
      xxhash64(destination), case when kind in ('taken', 'moved') then position end
    ) as goes,
    max(case when kind = 'written' then bytes end) as bytes
  from spoken_of group by space, origin, n, host, arrival
  -- The stay of a delayed entry begins when the entry becomes visible, at another arrival.
  having {_count("kind = 'delayed'")} = 0
),
logs as (
  -- Tuples of LIME move together, and the id does not name them.
  select host, space, min(position) as begins,
    {_undecided(f"{_DECISION} and txn like 'lime-move:%'")} as parcels
  from {{changes}} group by host, space
),
complete as (
  select space, xxhash64(host) as goes, true as known from logs where begins = 1
),
placed as (
  select /*+ broadcast(logs), broadcast(complete) */ s.*,
    s.arrival is not null as is_stay,
    {" + ".join(f"s.{kind}" for kind in ENDINGS)} - s.returned as ended,
    l.begins, l.parcels, c.known
  from stays s join logs l on s.host = l.host and s.space = l.space
    left join complete c on s.space = c.space and s.goes = c.goes
),
followed as (
  select *, is_stay and ended <= 0 as alive,
    lag(host) over in_time as before_host,
    lag(is_stay and ended <= 0) over in_time as before_alive,
    lag(ended_time) over in_time as before_time,
    lag(ended_position) over in_time as before_position,
    lag(goes) over in_time as before_goes
  from placed
  window in_time as (
    partition by space, origin, n order by is_stay, began nulls first, host, arrival nulls first
  )
),
judged as (
  select *,
    -- It came from there or, if the clocks differ, went there.
    before_host <> host and coalesce(
      before_goes = xxhash64(host) or goes = xxhash64(before_host), false
    ) as came_so,
    case when before_host = host then before_position > arrival
      else before_time > began + make_dt_interval(0, 0, 0, {{skew}}) end as lasted
  from followed
),
tallied as (
  select space, origin, n,
    {", ".join(f"sum({kind}) as {kind}" for kind in (*_KINDS, "reads", "astray", "lapsed"))},
    sum(greatest(doubt, 0)) as doubt, -- A log may begin between the promise and the decision.
    {_count("alive and parcels > 0")} as perhaps,
    {_count("alive")} as living,
    -- The previous stay had not ended when this one began.
    {_count("not came_so and (before_alive or lasted)")} as overlapping,
    {_count("is_stay")} as stays,
    {_count("moved > 0 and known is null")} as away,
    {_count("is_stay and written = 0 and arrival >= begins")} as unwritten,
    max(taken - returned) as most_taken,
    max(ended) as most_ended,
    min(ended) as least_ended,
    max(written) as most_written,
    min(began) as written_at,
    max(taken_at) as taken_at,
    max(ended_time) as ended_time,
    max(bytes) as bytes
  from judged group by space, origin, n
),
doubted as (
  -- An entry on its way may be at both hosts.
  select *, overlapping > doubt + perhaps or living > doubt + perhaps + 1 as twice from tallied
)
select *, case
    when unwritten > 0 then 'never written'
    when least_ended < 0 then 'returned twice'
    when most_taken > 1 then 'taken twice'
    when most_ended > 1 then 'ended twice'
    when twice and taken - returned > 1 then 'taken twice'
    when twice or most_written > 1 then 'duplicated'
    when doubt > 0 or living > 1 then 'in doubt'
    when living > 0 then 'living'
    when expired > 0 then 'expired'
    when cancelled > 0 then 'cancelled'
    when evicted > 0 then 'evicted'
    when taken > 0 then 'taken'
    when moved > 0 and away = 0 and lapsed = 0 then 'lost'
    when lapsed > 0 then 'expired'
    else 'moved'
  end as fate
from doubted where stays > 0
"""

_told = [f"case when {kind} > 0 then concat('{kind} ', {kind}) end" for kind in _TOLD]
_FOUND = f"""
select case which when 'fate' then fate else which end as fault, cast(null as string) as host,
  l.space, l.origin, l.n, cast(null as bigint) as first, cast(null as bigint) as last,
  concat_ws(', ', {", ".join(_told)},
    case when stays > 1 then concat(stays, ' stays') end) as told
from {{lives}} l cross join (values ('fate'), ('reordered'), ('never taken')) as w(which)
  left join (
    -- The records of the sink, which nobody takes.
    select distinct space, origin, n, true as remembered from {{changes}}
    where kind = 'written' and type = '{SUNK}'
  ) r on l.space = r.space and l.origin = r.origin and l.n = r.n
where (which = 'fate' and fate in ({_listed(FAULTY)}))
  or (which = 'reordered' and astray > 0)
  or (which = 'never taken' and {{drained}} and fate = 'living' and remembered is null)
union all
select 'reordered', host, space, origin, n, position, position,
  'it was written before, by its number'
from {{late}}
union all
select case when twice then 'repeated' else 'gap' end, host, space, null, null, first, last,
  case when twice then 'some of these positions are there twice'
    else 'these positions are not there' end
from {{gaps}}
union all
select 'empty', null, null, null, null, null, null, 'there are no changes to look at'
from (select count(*) as changes from (select 1 from {{changes}} limit 1) one) none
where changes = 0
"""


def lives_sql(skew_seconds: float) -> str:
    """One row per entry with its fate, from {changes}. `skew_seconds` is the largest difference
    between the clocks of the hosts."""
    return _LIVES.replace("{skew}", f"{skew_seconds:.6f}")


def faults_sql(drained: bool) -> str:
    """One row per fault, from {lives}, {changes}, {late} and {gaps}."""
    return _FOUND.replace("{drained}", str(drained).lower())


# DuckDB


_COLUMNS = (
    "host, space, position, arrival, time, kind, origin, n, agent, txn, expires, delayed, bytes,"
    " type"
)
# In logs of older versions only the change before, if it is kept, tells that an entry was delayed.
_LATE = f"""
select * from (
  select host, space, origin, n, position, max(n) over (
    partition by host, space, origin order by position, n
    rows between unbounded preceding and 1 preceding
  ) as highest
  from changes anti join (select * from changes where kind = 'delayed') as before
    using (host, space, origin, n)
  where kind = 'written' and delayed is null and (txn is null or txn like '{BY_REACTION}%')
    and agent = origin
) where n < highest
"""
_GAPS = """
select host, space, before + 1 as first, position - 1 as last, false as twice from (
  select host, space, position,
    lag(position) over (partition by host, space order by position) as before
  from changes
) where position > before + 1
union all
select host, space, min(position), max(position), true from changes
group by host, space, position // 64 having count(*) > count(distinct position)
"""


def audited(
    changes: LogTable | pa.Table, *, drained: bool = False, skew_seconds: float = 0.0
) -> tuple[pa.Table, dict[str, int]]:
    """The faults that DuckDB finds, in order, and the number of `entries`, of `living` ones and of
    those `in_doubt`."""
    from tupelo.pipeline.sql.duck import DuckDB

    with closing(DuckDB()) as duck, duck.complaints():
        duck.add("logs_read", changes)
        duck.run(f"create temp table changes as select {_COLUMNS} from logs_read")
        lives = lives_sql(skew_seconds).format(changes="changes")
        duck.run(f"create temp table lives as {lives}")
        faults = faults_sql(drained).format(
            changes="changes", lives="lives", late=f"({_LATE})", gaps=f"({_GAPS})"
        )
        found = duck.run(f"{faults} order by fault, host, space, origin, n, first")
        (seen,) = duck.run(
            "select count(*) as entries, count(*) filter (fate = 'living') as living,"
            " count(*) filter (fate = 'in doubt') as in_doubt from lives"
        ).to_pylist()
    return found, seen
