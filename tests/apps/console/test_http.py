"""The HTTP API: every operation done, waiting and refused, over real sockets."""

import json
import math
import socket
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tupelo
from tests.apps.console.conftest import Http
from tests.conftest import Call, until_true
from tupelo.apps.console import Console
from tupelo.apps.console.http import API_HEADERS, OPERATIONS, PAGE_HEADERS
from tupelo.apps.console.json_values import entry_from_json, entry_to_json
from tupelo.apps.console.openapi import describe_api
from tupelo.errors import BadArgument, BadEntry, CannotReach, UnknownSpace, UnknownType
from tupelo.models.event_heap import EventHeap

JOBS = "/api/spaces/jobs"


@tupelo.entry("ConsoleJob")
@dataclass
class Job:
    name: str
    size: int


# Entries


def test_an_entry_is_written_read_counted_and_taken(http, host):
    assert http.ok(f"{JOBS}/write", {"entry": ["job", 7, "resize"]}) == {"written": 1}
    assert host.space("jobs").read(("job", int, str), wait=0) == ("job", 7, "resize")
    asked = {"template": '("job", int, ANY)'}
    assert http.ok(f"{JOBS}/read", asked) == {"entry": ["job", 7, "resize"]}
    assert http.ok(f"{JOBS}/count", asked) == {"count": 1}
    assert http.ok(f"{JOBS}/take", asked) == {"entry": ["job", 7, "resize"]}
    assert http.ok(f"{JOBS}/take", asked) == {"entry": None}


def test_a_template_may_be_json(http, host):
    host.space("jobs").write_all([("job", 1), ("job", "x"), ("done", 1)])
    template = ["job", {"$type": "int"}]
    assert http.ok(f"{JOBS}/read", {"template": template, "limit": 9}) == {"entries": [["job", 1]]}
    anything = ["job", {"$any": True}]
    assert http.ok(f"{JOBS}/count", {"template": anything}) == {"count": 2}


@pytest.mark.parametrize(
    "template",
    [
        *([{"$prefix": "job-"}], [{"$suffix": "-1"}], [{"$regex": "job-[0-9]"}]),
        *('(Prefix("job-"),)', '(Suffix("-1"),)', '(Regex("job-[0-9]"),)'),
    ],
    ids=str,
)
def test_a_template_may_have_patterns(http, host, template):
    host.space("jobs").write_all([("job-1",), ("job",), (1,)])
    assert http.ok(f"{JOBS}/read", {"template": template, "limit": 9}) == {"entries": [["job-1"]]}


@pytest.mark.parametrize("template", [[{"$regex": "(a"}], [{"$prefix": 1}], '(Regex("(a"),)'])
def test_a_bad_pattern_is_refused(http, template):
    status, said = http.call("POST", f"{JOBS}/count", {"template": template})
    assert (status, said["error"]) == (400, "BadTemplate")
    assert "Regex('(a')" in said["message"] or "Prefix() takes a str, not 1" in said["message"]


def test_several_entries_are_written_in_one_step_or_none(http, host):
    status, said = http.call("POST", f"{JOBS}/write", {"entries": [["a"], {"no": "entry"}]})
    assert (status, said["error"]) == (400, "BadEntry")
    assert host.space("jobs").count() == 0
    http.ok(f"{JOBS}/write", {"entries": [["a"], '("b", 1)', {"$kind": "Job", "fields": {"n": 1}}]})
    assert host.space("jobs").count() == 3


def test_a_dataclass_is_an_object_with_its_kind(http, host):
    host.space("jobs").write(Job("resize", 3))
    host.space("jobs").write(("todo", Job("cut", 1)))
    for template in ("ConsoleJob", ["todo", {"$type": "ConsoleJob"}], '("todo", ConsoleJob())'):
        assert http.ok(f"{JOBS}/count", {"template": template}) == {"count": 1}
    said = http.ok(f"{JOBS}/take", {"template": 'ConsoleJob(name="resize")'})
    assert said == {"entry": {"$kind": "ConsoleJob", "fields": {"name": "resize", "size": 3}}}
    http.ok(f"{JOBS}/write", said)
    assert host.space("jobs").take(tupelo.Named(name="resize"), wait=0) == Job("resize", 3)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.uuids()
    | st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(fold=0))
    | st.decimals(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=4).map(tuple))
def test_every_value_comes_back_as_it_was(entry):
    assert repr(entry_from_json(entry_to_json(entry))) == repr(entry)


def test_values_that_json_lacks_have_names():
    moment = datetime(2026, 11, 18, tzinfo=UTC)
    entry = (b"hi", 2**60, Decimal("1.50"), UUID(int=7), moment, (1,), math.inf, {1: 2, "$a": 3})
    assert entry_to_json(entry) == [
        {"$bytes": "aGk="},
        {"$int": str(2**60)},
        {"$decimal": "1.50"},
        {"$uuid": str(UUID(int=7))},
        {"$datetime": moment.isoformat()},
        {"$tuple": [1]},
        {"$float": "inf"},
        {"$dict": [[1, 2], ["$a", 3]]},
    ]


@pytest.mark.parametrize(
    "said",
    [
        *({}, 7, None, {"$bytes": "aGk="}, [{"$nothing": "x"}], [{"$bytes": "?"}], [{"$int": 1}]),
        *([{"$uuid": "x"}], [{"$dict": [[[], 1]]}], [{"$kind": 3, "fields": {}}], "(", "open('x')"),
    ],
)
def test_what_is_no_entry_is_refused(said):
    with pytest.raises(BadEntry, match="entry="):
        entry_from_json(said)


# Waiting


def test_a_take_waits_and_is_seen_while_it_does(http, host):
    taker = Call(http.ok, f"{JOBS}/take", {"template": '("later", int)', "wait": 60})
    until_true(lambda: http.ok("/api/spaces") and http.ok(JOBS)["waiting"] == 1, "it waits")
    [waiter] = http.ok(JOBS)["waiters"]
    assert (waiter["take"], waiter["name"]) == (True, "console")
    assert "later" in waiter["template"]
    assert 0 <= waiter["seconds"] < 3600
    host.space("jobs").write(("later", 1))
    assert taker.result() == {"entry": ["later", 1]}


def test_a_take_whose_client_disconnects_takes_nothing(http, host, console):
    with socket.create_connection(console.address.split(":")) as line:
        body = b'{"template": "(\\"later\\",)", "wait": 60}'
        head = f"POST {JOBS}/take HTTP/1.1\r\nHost: {console.address}\r\n"
        head += f"Authorization: Bearer {console.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        line.sendall(head.encode() + body)
        until_true(lambda: http.ok("/api/spaces")["spaces"], "there is the space")
        until_true(lambda: http.ok(JOBS)["waiting"] == 1, "it waits")
    until_true(lambda: http.ok(JOBS)["waiting"] == 0, "it waits no more")
    host.space("jobs").write(("later",))
    assert host.space("jobs").count() == 1


def test_a_wait_ends_without_a_match(http):
    assert http.ok(f"{JOBS}/read", {"template": '("no",)', "wait": 0.01}) == {"entry": None}


# Pages


def test_a_page_has_entries_as_a_read_has_them(http, host):
    space = host.space("jobs")
    for entry in (
        *(("job", 7), (), ("", True, None), (1.5, math.inf), (2**53, -(2**53)), (2**53 + 1,)),
        *((-(2**64),), (b"hi",), ((1, (2,)),), ([1], {"a": 1}), (UUID(int=7), Decimal("1.50"))),
        *(Job("resize", 3), (Job("resize", 2**60),), ("\u202e", "$int")),
    ):
        space.write(entry)
    read = http.ok(f"{JOBS}/read", {"limit": 100})["entries"]
    assert len(read) == 14
    for about in (False, True):
        body = {"limit": 100, "about": about}
        assert http.ok(f"{JOBS}/entries", body)["entries"] == read


def test_pages_give_each_entry_once_while_others_come_and_go(http, host):
    space = host.space("jobs")
    space.write_all([("job", n) for n in range(25)])
    first = http.ok(f"{JOBS}/entries", {"limit": 10})
    space.take(("job", 12))
    space.write(("job", 99))
    second = http.ok(f"{JOBS}/entries", {"limit": 10, "cursor": first["cursor"]})
    third = http.ok(f"{JOBS}/entries", {"limit": 10, "cursor": second["cursor"]})
    found = [n for page in (first, second, third) for _, n in page["entries"]]
    assert found == [*range(12), *range(13, 25), 99]
    assert third["cursor"] is None
    status, said = http.call("POST", f"{JOBS}/entries", {"cursor": first["cursor"]})
    assert (status, said["error"]) == (400, "BadArgument")


def test_a_cursor_is_for_one_space_and_template(http, host):
    for name in ("jobs", "other"):
        host.space(name).write_all([("job", n) for n in range(5)])
    for path, template in (("/api/spaces/other", None), (JOBS, '("job", int)')):
        cursor = http.ok(f"{JOBS}/entries", {"limit": 2})["cursor"]
        body = {"limit": 2, "cursor": cursor, "template": template}
        status, said = http.call("POST", f"{path}/entries", body)
        assert (status, "cursor=" in said["message"]) == (400, True)


# Transactions


def test_a_transaction_holds_and_gives_back(http, host):
    space = host.space("jobs")
    space.write(("job", 1))
    txn = http.ok("/api/transactions", {"space": "jobs", "lease": 60})["txn"]
    assert http.ok(f"{JOBS}/take", {"txn": txn}) == {"entry": ["job", 1]}
    [held] = http.ok(JOBS)["open_transactions"]
    assert (held["taken"], held["name"], held["state"]) == (1, "console", "active")
    assert held["holds"] == ["('job', 1)"]
    assert space.count() == 0
    assert http.ok(f"/api/transactions/{txn}/abort", {}) == {"state": "aborted"}
    assert space.count() == 1
    txn = http.ok("/api/transactions", {"space": "jobs"})["txn"]
    http.ok(f"{JOBS}/take", {"txn": txn})
    http.ok(f"{JOBS}/write", {"entry": ["done", 1], "txn": txn})
    assert http.ok(f"/api/transactions/{txn}/commit", {}) == {"state": "committed"}
    assert space.read_all() == [("done", 1)]
    status, said = http.call("POST", f"/api/transactions/{txn}/commit", {})
    assert (status, said["error"]) == (400, "BadArgument")


def test_a_transaction_of_another_space_is_refused(http, host):
    host.space("other")
    txn = http.ok("/api/transactions", {"space": "jobs"})["txn"]
    status, said = http.call("POST", "/api/spaces/other/take", {"txn": txn})
    assert status == 400
    assert "txn=" in said["message"]


def test_a_transaction_whose_lease_is_over_has_ended(http):
    txn = http.ok("/api/transactions", {"space": "jobs", "lease": 0.01})["txn"]
    until_true(lambda: http.ok(JOBS)["transactions"] == 0, "it has ended")
    status, said = http.call("POST", f"{JOBS}/write", {"entry": ["x"], "txn": txn})
    assert (status, said["error"]) == (409, "TransactionEnded")


# Leases


def test_the_lease_of_an_entry_is_renewed_and_cancelled(http, host):
    said = http.ok(f"{JOBS}/write", {"entries": [["job", 1], ["job", 2]], "lease": 600})
    first, second = said["leases"]
    assert http.ok(f"/api/leases/{first}/renew", {"lease": None}) == {"state": "renewed"}
    assert http.ok(f"/api/leases/{second}/cancel", {}) == {"state": "cancelled"}
    jobs = host.space("jobs")
    assert jobs.read_all() == [("job", 1)]
    assert [one.expires is None for one in jobs.changes() if one.kind == "renewed"] == [True]
    status, said = http.call("POST", f"/api/leases/{second}/cancel", {})
    assert (status, "lease=" in said["message"]) == (400, True)
    for body in ({}, {"lease": -1}, {"lease": "long"}):
        status, said = http.call("POST", f"/api/leases/{first}/renew", body)
        assert (status, "lease=" in said["message"]) == (400, True)
    jobs.take(("job", 1))
    status, said = http.call("POST", f"/api/leases/{first}/renew", {"lease": 5})
    assert (status, said["error"]) == (410, "LeaseLost")


# Events


def test_a_subscription_tells_what_is_written(http, host):
    with http.events(f"{JOBS}/subscribe", {"template": '("job", int)'}) as events:
        assert next(events) == ("ready", {})
        host.space("jobs").write_all([("other",), ("job", 1), ("job", 2)])
        assert next(events) == ("message", {"entry": ["job", 1], "missed": 0})
        assert next(events) == ("message", {"entry": ["job", 2], "missed": 0})
    until_true(lambda: http.ok(JOBS)["subscriptions"] == 0, "it has ended with its reader")


def test_changes_are_listed_and_watched(http, host):
    space = host.space("jobs")
    space.write(("job", 1))
    [change] = http.ok(f"{JOBS}/changes", {"limit": 5})["changes"]
    assert (change["position"], change["kind"], change["entry"]) == (1, "written", ["job", 1])
    asked = {"kinds": ["taken"], "template": '("job", int)'}
    with http.events(f"{JOBS}/watch", asked) as events:
        assert next(events) == ("ready", {"position": 1})
        space.take(("job", 1))
        space.write(("x",))
        space.take(("x",))
        seen = []
        for name, said in events:
            assert name == "message"
            seen += said["changes"]
            if said["position"] >= 4:
                break
    assert [(one["kind"], one["entry"]) for one in seen] == [("taken", ["job", 1])]


def test_of_a_flood_the_newest_changes_are_shown_and_the_rest_is_counted(http, host):
    space = host.space("jobs")
    space.write(("job", 0))
    with http.events(f"{JOBS}/watch", {}) as events:
        assert next(events) == ("ready", {"position": 1})
        for start in range(0, 5_000, 1_000):
            space.write_all([("job", start + n) for n in range(1_000)])
        seen = skipped = 0
        for _, said in events:
            seen += len(said["changes"])
            skipped += said["skipped"]
            last = said["changes"][-1]
            if said["position"] >= 5_001:
                break
    assert last["position"] >= 5_001
    assert seen + skipped == 5_000


def test_a_space_without_a_log_says_so(tmp_path):
    with tupelo.Host("memory", listen="127.0.0.1:0") as host, Console(host.url) as console:
        http = Http(console)
        http.ok(f"{JOBS}/write", {"entry": ["x"]})
        for operation in ("changes", "watch"):
            status, said = http.call("POST", f"{JOBS}/{operation}", {})
            assert (status, said["error"]) == (410, "LogTrimmed")


# What is refused


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"template": "((("}, "template="),
        ({"template": 7}, "template="),
        ({"template": '("job", render)'}, 'a text has quotes, "render"'),
        ({"tempate": "ANY"}, "tempate="),
        ({"wait": -1}, "wait="),
        ({"wait": "long"}, "wait="),
        ({"limit": 0}, "limit="),
        ({"limit": 5_000}, "limit="),
        ({"txn": 7}, "txn="),
        ([], "body="),
        (b"{", "body="),
        (b"\xff", "body="),
    ],
)
def test_bad_input_names_the_argument(http, body, named):
    status, said = http.call("POST", f"{JOBS}/take", body)
    assert (status, named in said["message"]) == (400, True), said


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic abc", "Bearer \xe4"])
def test_a_wrong_token_is_refused(http, given):
    for method, path, *_ in OPERATIONS:
        if path in ("/healthz", "/readyz"):
            continue
        path = path.replace("{space}", "jobs").replace("{txn}", "x")
        headers = {"Authorization": given}
        status, said = http.call(method, path, None, headers=headers)
        assert (status, said["error"]) == (401, "WrongToken")


def test_another_name_for_this_address_is_refused(http):
    status, said = http.call("GET", "/api/spaces", headers={"Host": "evil.example:80"})
    assert (status, said["error"]) == (421, "BadHost")


def test_access_rules_apply(http, host):
    host.space("secret")
    host.change_access("secret", tupelo.Access(read=[]))
    http.ok("/api/spaces/secret/write", {"entry": ["x"]})
    status, said = http.call("POST", "/api/spaces/secret/read", {})
    assert (status, said["error"]) == (403, "NotAllowed")
    [listed] = [one for one in http.ok("/api/spaces")["spaces"] if one["name"] == "secret"]
    assert set(listed) == {"name", "refused"}
    assert http.call("GET", "/api/spaces/secret")[0] == 403


def test_there_are_no_reserved_spaces(http):
    assert http.call("GET", "/api/spaces/tupelo.presence")[0] == 400
    assert http.call("POST", "/api/spaces/tupelo.x/write", {"entry": ["x"]})[0] in (400, 403)


def test_every_answer_has_the_headers_that_protect_the_page(http):
    for path, expected in (
        ("/", PAGE_HEADERS),
        ("/console.js", PAGE_HEADERS),
        ("/api/spaces", API_HEADERS),
        ("/nothing", API_HEADERS),
        ("/healthz", API_HEADERS),
    ):
        headers = http.raw("GET", path)[2]
        for name, value in expected.items():
            assert headers[name.lower()] == value, (path, name)


def test_a_body_that_is_too_long_is_refused(http):
    status, said = http.call("POST", f"{JOBS}/write", b"[" + b" " * 9_000_000)
    assert (status, "body=" in said["message"]) == (400, True)


# The host


def test_the_host_its_programs_and_its_peers(http, host):
    assert http.ok("/healthz") == {"status": "ok"}
    assert http.ok("/readyz") == {"status": "ok", "spaces": {}}
    with (
        tupelo.connect(host.url + "jobs", name="worker-1"),
        tupelo.Host("garden", listen="127.0.0.1:0", peers=[host.address]),
    ):
        until_true(lambda: http.ok("/api/host")["peers"], "they are engaged")
        about = http.ok("/api/host")
        assert (about["name"], about["peers"][0]["name"]) == ("kitchen", "garden")
        assert {"worker-1", "console"} <= {client["name"] for client in about["clients"]}
        [garden] = about["peers"]
        assert garden["latency"] >= 0
        assert garden["sent"] > 0 < garden["received"]
        again = http.ok("/api/host")["peers"][0]
        assert again["sent"] > garden["sent"]
    until_true(lambda: not http.ok("/api/host")["peers"], "it has gone")
    kinds = [(one["kind"], one["name"]) for one in http.ok("/api/host")["news"]]
    assert kinds == [("engaged", "garden"), ("departed", "garden")]


def test_comings_and_goings_are_noted_before_anyone_looks(http, host):
    with tupelo.Host("garden", listen="127.0.0.1:0", peers=[host.address]) as garden:
        until_true(lambda: garden.engaged and host.engaged, "they are engaged")
    [first, *_] = http.ok("/api/host")["news"]
    assert (first["kind"], first["name"]) == ("engaged", "garden")


def test_the_group_is_shown_as_it_forms_and_parts(http, host):
    with tupelo.Host("garden", listen="127.0.0.1:0", peers=[host.address]) as garden:
        until_true(lambda: garden.engaged and host.engaged, "they are engaged")
        with EventHeap(host, "board"), EventHeap(garden, "board"):
            until_true(lambda: http.ok("/api/host")["group"] == ["garden", "kitchen"], "a group")
            http.ok("/api/host/disengage", {})
            until_true(lambda: http.ok("/api/host")["group"] == ["kitchen"], "it is alone")
    news = [one["name"] for one in http.ok("/api/host")["news"] if one["kind"] == "group"]
    assert news[-2:] == ["garden, kitchen", "kitchen"]


def test_identities_and_access_rules_are_shown(tmp_path):
    alice = tupelo.Identity.new()
    with tupelo.Host("kitchen", listen="127.0.0.1:0", path=tmp_path, local_trust=False) as host:
        assert host.identity is not None
        host.trust(alice.key)
        host.space("jobs", access=tupelo.Access(take=[alice.key]))
        known = tupelo.Trust.known([host.identity])
        with Console(host.url, identity=alice, trust=known, tls=True) as console:
            http = Http(console)
            about = http.ok("/api/host")
            assert about["identity"] == host.identity
            assert [one["identity"] for one in about["clients"]] == [alice.key]
            rules = http.ok(JOBS)["access"]
            assert (rules["read"], rules["take"]) == (["anyone"], [alice.key])


def test_metrics(http, host):
    host.space('a "b"').write(("x",))
    status, raw, _ = http.raw("GET", "/metrics")
    assert status == 200
    assert b'tupelo_entries{space="a \\"b\\""} 1\n' in raw


def test_the_description_has_every_operation(http):
    described = http.ok("/api/openapi.json")
    assert described == json.loads(json.dumps(describe_api(OPERATIONS)))
    for method, path, *_ in OPERATIONS:
        assert described["paths"][path][method.lower()]["summary"]
        path = path.replace("{space}", "jobs").replace("{txn}", "x")
        if not path.endswith(("/subscribe", "/watch")):
            status = http.raw(method, path, None if method == "GET" else {})[0]
            assert status not in (404, 405, 500), path


def test_a_host_that_is_gone_is_told(console, host, http, monkeypatch):
    monkeypatch.setattr("tupelo.apps.console.http.READY_SECONDS", 0.2)
    host.close()
    assert http.ok("/healthz") == {"status": "ok"}
    status, said = http.call("GET", "/readyz")
    assert (status, said["status"]) == (503, "unreachable")


def test_a_console_goes_on_when_its_host_is_back(tmp_path, monkeypatch):
    with tupelo.Host("kitchen", listen="127.0.0.1:0", path=tmp_path) as host:
        address, console = host.address, Console(host.url)
        http = Http(console)
        http.ok(f"{JOBS}/write", {"entry": ["job", 1]})
    with console:
        with monkeypatch.context() as patched:
            patched.setattr("tupelo.apps.console.http.READY_SECONDS", 0.2)
            assert http.call("GET", "/readyz")[0] == 503
        with tupelo.Host("kitchen", listen=address, path=tmp_path):
            until_true(lambda: http.call("GET", "/readyz")[0] == 200, "the host answers")
            assert http.ok(f"{JOBS}/take", {}) == {"entry": ["job", 1]}


def test_no_host_no_console():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"tupelo://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(CannotReach):
            Console(url, reconnect=0)


def test_addresses_and_tokens_are_checked(host):
    with Console(host.url) as console:
        for listen in ("nowhere", "127.0.0.1:99999", "0.0.0.0:0", console.address):
            with pytest.raises(BadArgument, match="listen="):
                Console(host.url, listen=listen)
        with pytest.raises(BadArgument, match="token="):
            Console(host.url, token="short")
    assert "tupelo console" not in [thread.name for thread in threading.enumerate()]


def test_entries_of_unknown_classes_are_shown_and_stay_unknown_to_the_program(http, host):
    kind = {"$kind": "away.Thing", "fields": {"a": 1}}
    http.ok(f"{JOBS}/write", {"entry": kind})
    assert http.ok(f"{JOBS}/read", {}) == {"entry": kind}
    with pytest.raises(UnknownType):
        host.space("jobs").read(wait=0)


# Deliveries, delays, unknown spaces


def test_an_answer_says_how_often_an_entry_came_back(http, host):
    space = host.space("jobs")
    space.write_all([("job", 1), ("job", 2)])
    for _ in range(2):
        with space.transaction() as txn:
            space.take(("job", 1), txn=txn)
            txn.abort()
    one = http.ok(f"{JOBS}/read", {"template": '("job", 1)', "about": True})
    assert (one["entry"], one["about"]["deliveries"]) == (["job", 1], 2)
    for operation in ("entries", "read"):
        said = http.ok(f"{JOBS}/{operation}", {"limit": 9, "about": True})
        told = {
            tuple(entry): about["deliveries"]
            for entry, about in zip(said["entries"], said["about"], strict=True)
        }
        assert told == {("job", 1): 2, ("job", 2): 0}
    lives = http.ok(f"{JOBS}/history", {"template": '("job", 1)'})["lives"]
    assert lives[0]["events"][-1]["deliveries"] == 2
    assert http.ok(f"{JOBS}/take", {"template": '("no",)', "about": True})["about"] is None
    status, said = http.call("POST", f"{JOBS}/read", {"about": "yes"})
    assert (status, "about=" in said["message"]) == (400, True)


def test_an_entry_is_written_with_a_delay(http, host):
    assert http.ok(f"{JOBS}/write", {"entry": ["job", 1], "delay": 3600}) == {"written": 1}
    space = host.space("jobs")
    assert (space.count(), space.delayed().count) == (0, 1)
    http.ok(f"{JOBS}/write", {"entry": ["job", 2], "delay": 0.01})
    taken = http.ok(f"{JOBS}/take", {"template": '("job", int)', "wait": 60})
    assert taken == {"entry": ["job", 2]}
    for delay in (-1, "soon"):
        status, said = http.call("POST", f"{JOBS}/write", {"entry": ["x"], "delay": delay})
        assert (status, "delay=" in said["message"]) == (400, True)


@pytest.mark.parametrize(
    "operation",
    ["read", "take", "count", "entries", "subscribe", "changes", "history", "watch"],
)
def test_only_a_write_makes_a_space(http, host, operation):
    status, said = http.call("POST", f"/api/spaces/jbos/{operation}", {})
    assert (status, said["error"]) == (404, "UnknownSpace")
    assert said["message"] == "there is no space 'jbos' at this host; there is 'jobs'"
    with pytest.raises(UnknownSpace):
        host.space("jbos", create=False)
    http.ok("/api/spaces/jbos/write", {"entry": ["x"]})
    assert host.space("jbos", create=False).count() == 1


def test_an_unknown_space_is_not_found_where_the_host_makes_none():
    with (
        tupelo.Host("kitchen", listen="127.0.0.1:0", create_spaces=False) as host,
        Console(host.url) as console,
    ):
        http = Http(console)
        host.space("jobs").write(("job", 1))
        with pytest.raises(UnknownSpace) as raised:
            tupelo.connect(host.url + "jbos")
        for path, body in (("write", {"entry": ["x"]}), ("take", {}), ("entries", {})):
            status, said = http.call("POST", f"/api/spaces/jbos/{path}", body)
            assert (status, said["error"]) == (404, "UnknownSpace")
            assert said["message"] == str(raised.value)
        assert http.call("GET", "/api/spaces/jbos")[0] == 404
        assert http.ok(f"{JOBS}/count", {}) == {"count": 1}
