"""The server against its own OpenAPI document, by requests that nobody thought of."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
KEY = "contract-key"
POST = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/flush_cache"]
GET = [
    "/v1/models", "/v1/models/{model}", "/health/live", "/health/ready", "/health/degraded",
    "/metrics", "/admin/requests",
]  # fmt: skip


@pytest.fixture(scope="module")
def contract_server(build_server: Any, hermes: str) -> Any:
    server = build_server(
        template=hermes, keys=[KEY], admin_keys=[f"{KEY}-admin"], request_timeout=20.0
    )
    yield server
    server.stop()


@pytest.fixture(scope="module")
def document(contract_server: Any) -> Any:
    return schemathesis.openapi.from_url(f"{contract_server.url}/openapi.json")


@pytest.mark.parametrize("path", [*POST, *GET])
def test_responses_keep_the_contract(contract_server: Any, document: Any, path: str) -> None:
    admin = path in ("/flush_cache", "/admin/requests")
    headers = {"authorization": f"Bearer {KEY}-admin" if admin else f"Bearer {KEY}"}
    operation = document[path]["POST" if path in POST else "GET"]
    strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    if path in POST and path != "/flush_cache":  # it takes no body, so none is wrong
        strategy |= operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

    @hypothesis.settings(
        max_examples=16 if path in POST else 3,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @hypothesis.given(case=strategy)
    def check(case: Any) -> None:
        if isinstance(case.body, dict) and path.startswith("/v1/") and "max_tokens" in case.body:
            tokens = case.body["max_tokens"]
            if isinstance(tokens, int) and tokens > 50:  # answers take time; that is no contract
                case.body["max_tokens"] = 50
        response = case.call(headers={**(case.headers or {}), **headers})
        case.validate_response(response, checks=CHECKS)

    check()


def test_the_document_is_what_requests_are_checked_with(contract_server: Any) -> None:
    paths = contract_server.http.get("/openapi.json").json()["paths"]
    model = contract_server.service.model
    for path, name in (("/v1/chat/completions", "chat"), ("/v1/completions", "completion")):
        published = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert published == model.schemas[name]
    assert {*POST, *GET} <= set(paths)


def test_nothing_was_left_behind(contract_server: Any) -> None:
    contract_server.until(lambda: contract_server.service.model.thread.num_live == 0)
    contract_server.until(contract_server.is_partitioned)
    assert contract_server.metric('sglk_errors_total{kind="internal"}') == 0
