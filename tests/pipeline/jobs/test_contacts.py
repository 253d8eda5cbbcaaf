"""Contacts, partitions and the spread of entries, against plain computations on random logs."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from random import Random
from statistics import mean
from typing import Any

import pytest

from tests.pipeline.jobs.recorded import table_of
from tests.pipeline.jobs.test_jobs import Logs, at
from tests.pipeline.jobs.test_owner import answers
from tupelo.federation.names import PRESENCE
from tupelo.pipeline import jobs
from tupelo.pipeline.intervals import interval

HOSTS = "abcdef"


def met(logs: Logs, host: str, seconds: float, kind: str, peer: str) -> None:
    thing = {"id": peer, "name": f"the {peer}", "address": f"{peer}:1", "how": ""}
    logs.add(host, seconds, kind, PRESENCE, fields=json.dumps(thing))


@pytest.fixture
def walk() -> tuple[Logs, dict[Any, list[tuple[float, float | None]]]]:
    """Hosts that meet and part at random; and when each was engaged with each."""
    logs, rng, spans = Logs(), Random(7), defaultdict[Any, list[tuple[float, float | None]]](list)
    for host in HOSTS:
        met(logs, host, 0, "engaged", host)
    for second in range(1, 150):
        pair = tuple(rng.sample(HOSTS, 2))
        for host, peer in (pair, pair[::-1]):
            known = spans[host, peer]
            if known and known[-1][1] is None:
                met(logs, host, second, "disengaged", peer)
                known[-1] = known[-1][0], second
            else:
                met(logs, host, second, "engaged", peer)
                known.append((second, None))
    return logs, {pair: known for pair, known in spans.items() if known}


def test_contacts(spark, walk):
    logs, spans = walk
    found = answers(jobs.contacts(table_of(spark, logs.rows)), "host", "peer")
    assert found.keys() == spans.keys()
    for pair, row in found.items():
        lasted = [until - since for since, until in spans[pair] if until is not None]
        apart = [b[0] - a[1] for a, b in pairwise(spans[pair]) if a[1] is not None]
        assert (row["contacts"], row["peer_name"]) == (len(spans[pair]), f"the {pair[1]}")
        for prefix, values in (("", lasted), ("between_", apart)):
            assert row[f"{prefix}mean"] == (pytest.approx(mean(values)) if values else None)
            _, _, high = interval(values) if values else (None, None, None)
            half = None if high is None else high - mean(values)
            assert row[f"{prefix}ci"] == pytest.approx(half)
            if values:
                assert row[f"{prefix}p50"] == sorted(values)[(len(values) - 1) // 2]


def test_partitions(spark, walk):
    logs, spans = walk
    met(logs, "a", 150, "disengaged", "a")  # It stops; its peers notice.
    for peer in HOSTS[1:]:
        if spans.get((peer, "a"), [(0, 0)])[-1][1] is None:
            met(logs, peer, 150, "disengaged", "a")
    expected: list[tuple[Any, list[set[str]]]] = []
    for second in range(151):
        hosts = HOSTS[1:] if second == 150 else HOSTS
        links = {
            (host, peer)
            for (host, peer), some in spans.items()
            if {host, peer} <= {*hosts}
            and any(s <= second and (e is None or second < e) for s, e in some)
        }
        groups = [{host} for host in hosts]
        for host, peer in links:
            mine = next(group for group in groups if host in group)
            other = next(group for group in groups if peer in group)
            if mine is not other:
                mine |= other
                groups.remove(other)
        groups.sort(key=min)
        if not expected or groups != expected[-1][1]:
            expected.append((at(second), groups))
    found = jobs.partitions(table_of(spark, logs.rows)).orderBy("at").toArrow().to_pylist()
    assert [
        (row["at"], [{*group.split()} for group in row["members"].split(" | ")]) for row in found
    ] == expected
    for row, (_, groups) in zip(found, expected, strict=True):
        assert row["hosts"] == sum(map(len, groups))
        assert (row["groups"], row["largest"]) == (len(groups), max(map(len, groups)))


def test_spread(spark):
    logs, rng = Logs(), Random(3)
    expected = defaultdict[Any, list[float | None]](list)
    for n in range(1, 80):
        entry: dict[str, Any] = {"origin": "a", "n": n, "fields": f'["news",{n}]'}
        copies = rng.sample(HOSTS, rng.randrange(1, 4))
        for number, host in enumerate(copies):
            arrival = logs.add(host, n + number, "written", **entry)
            logs.rows[-1]["arrival"] = arrival
        seconds: float | None = None
        if rng.random() < 0.6:
            seconds = len(copies) + rng.random()
            logs.add(copies[-1], n + seconds, "read", agent="ann", arrival=arrival, **entry)
        logs.add(copies[-1], n + 9, "read", agent="a", arrival=arrival, **entry)  # its writer
        expected[len(copies)].append(seconds)
    found = answers(jobs.spread(table_of(spark, logs.rows)), "copies")
    assert {key[0] for key in found} == expected.keys()
    for (copies,), row in found.items():
        got = [seconds for seconds in expected[copies] if seconds is not None]
        assert (row["entry_kind"], row["hops"]) == ("news", copies - 1)
        assert (row["entries"], row["delivered"]) == (len(expected[copies]), len(got))
        assert row["ratio"] == len(got) / row["entries"]
        assert row["mean"] == pytest.approx(mean(got), abs=1e-5)
        _, _, high = interval(got)
        assert high is not None and row["ci"] == pytest.approx(high - mean(got), abs=1e-5)
