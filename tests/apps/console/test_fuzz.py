"""The HTTP API, fuzzed from its own description: no request may fail in a way that it does not
describe, and none may break the console. The examples are the same in every run."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

import tupelo
from tupelo.apps.console import Console
from tupelo.apps.console.openapi import OPERATIONS, STREAMS, describe_api

EXAMPLES = 10
NOT_CALLED = {"/api/host/disengage", "/api/host/engage"}
"""They have no arguments, and would part the host in the middle."""
SCHEMA = schemathesis.openapi.from_dict(describe_api())
FUZZED = [
    (method, path)
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


load_all_checks()
NAMES = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
]
KEPT = [CHECKS.get_one(name) for name in NAMES]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("method", "path"), FUZZED)
def test_every_operation_answers_as_it_is_described(served, method, path, mode):
    host, console = served
    operation = SCHEMA[path][method]

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(mode))
    def call(case):
        if isinstance(case.body, dict) and isinstance(case.body.get("wait"), int | float):
            case.body["wait"] = min(case.body["wait"], 0.001)
        case.call_and_validate(
            base_url=f"http://{console.address}",
            headers={"Authorization": f"Bearer {console.token}"},
            checks=KEPT,
            timeout=60,
        )

    if mode is GenerationMode.NEGATIVE and method == "get" and "{" not in path:
        return  # Nothing can be wrong.
    call()
    assert host.space("alive").count() == 0  # The host still answers.
