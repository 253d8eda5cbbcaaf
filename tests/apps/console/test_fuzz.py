"""The HTTP API, fuzzed from its own description: no request may fail in a way that it does not
describe, and none may break the console. The examples are the same in every run."""

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import tupelo
from tupelo.apps.console import Console
from tupelo.apps.console.http import OPERATIONS
from tupelo.apps.console.openapi import STREAMS, describe_api

EXAMPLES = 10
NOT_CALLED = {"/api/host/disengage", "/api/host/engage"}
"""They have no arguments, and would part the host in the middle."""
FUZZED = [
    (method.lower(), path)
    for method, path, *_ in OPERATIONS
    if not path.endswith(STREAMS) and path not in NOT_CALLED
]


@pytest.fixture(scope="module")
def served():
    with (
        tupelo.Host("kitchen", listen="127.0.0.1:0", limits=tupelo.Limits(spaces=10_000)) as host,
        Console(host.url) as console,
    ):
        yield host, console


@pytest.fixture(scope="module")
def described():
    """Schemathesis takes a second to import: only where it is used."""
    import schemathesis
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    return SimpleNamespace(
        schema=schemathesis.openapi.from_dict(describe_api(OPERATIONS)),
        mode=schemathesis.GenerationMode,
        checks=[CHECKS.get_one(name) for name in CHECKED],
    )


CHECKED = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
]


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("method", "path"), FUZZED)
def test_every_operation_answers_as_it_is_described(served, described, method, path, mode):
    host, console = served
    operation = described.schema[path][method]

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(described.mode(mode)))
    def call(case):
        if isinstance(case.body, dict) and isinstance(case.body.get("wait"), int | float):
            case.body["wait"] = min(case.body["wait"], 0.001)
        case.call_and_validate(
            base_url=f"http://{console.address}",
            headers={"Authorization": f"Bearer {console.token}"},
            checks=described.checks,
            timeout=60,
        )

    if mode == "negative" and method == "get" and "{" not in path:
        return  # Nothing can be wrong.
    call()
    assert host.space("alive").count() == 0  # The host still answers.
