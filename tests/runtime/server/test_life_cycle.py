"""Disconnects, limits, drains, faults of the device: pages come back and the rest goes on."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import httpx2
import openai
import pytest
from sglk.errors import DeviceError, SglkError
from sglk.runtime.request import Request

BODY: Any = {"model": "test", "prompt": "hello", "max_tokens": 2000, "temperature": 0}


def request_bytes(body: Any, path: str = "/v1/completions", **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def connect(server: Any) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def until_idle(server: Any) -> None:
    server.until(lambda: server.service.model.thread.num_live == 0)
    server.until(lambda: not server.engine.has_work and server.is_partitioned())
    assert server.service.model.gate.num_answers == server.service.model.gate.num_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("state", ["queued", "prefill", "decode"])
def test_a_client_that_leaves_frees_its_pages_in_every_state(
    make_server: Any, state: str, stream: bool
) -> None:
    server = make_server(limits={"max_running": 1, "max_step_tokens": 8})
    blocker = None
    server.device.pace = 0.005
    if state == "queued":
        blocker = connect(server)
        blocker.sendall(request_bytes(BODY))
        server.until(lambda: server.metric("sglk_running") == 1)
    if state == "prefill":
        server.device.hold()
    client = connect(server)
    prompt = "x" * (100 if state == "prefill" else 3)
    client.sendall(request_bytes({**BODY, "prompt": prompt, "stream": stream}))
    if state == "prefill":
        assert server.device.entered.wait(20)
    elif state == "queued":
        server.until(lambda: server.metric("sglk_queued") == 1)
    else:
        server.until(lambda: server.metric("sglk_generated_tokens_total") > 2)
    client.close()
    left = 1 if state == "queued" else 0
    server.until(lambda: server.service.model.thread.num_live == left)
    server.device.go()
    if blocker is not None:
        server.until(lambda: server.metric("sglk_queued") == 0)
        blocker.close()
    until_idle(server)
    assert server.metric('sglk_answers_total{reason="abort"}') == 1 + left
    assert server.metric("sglk_disconnects_total") == 1 + left
    assert server.metric('sglk_errors_total{kind="internal"}') == 0


def test_a_client_that_leaves_behind_pipelined_requests_is_noticed(make_server: Any) -> None:
    server = make_server()
    client = connect(server)
    client.sendall(request_bytes(BODY) * 3)
    server.until(lambda: server.metric("sglk_generated_tokens_total") > 2)
    client.close()
    until_idle(server)


def test_a_full_queue_refuses_with_retry_after_and_recovers(make_server: Any) -> None:
    server = make_server(limits={"max_running": 1}, max_queued=2)
    server.device.hold()
    clients = [connect(server) for _ in range(3)]
    for client in clients:
        client.sendall(request_bytes({**BODY, "max_tokens": 4}))
    server.until(lambda: server.service.model.gate.num_answers == 3)
    refused = server.post("/v1/completions", BODY)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["code"] == "queue_full"
    with pytest.raises(openai.RateLimitError, match="expected at most 3 answers"):
        server.openai.completions.create(model="test", prompt="x")
    assert server.http.get("/health/live").status_code == 200
    reasons = server.http.get("/health/degraded").json()["reasons"]
    assert [each["reason"] for each in reasons] == ["queue"]
    server.device.go()
    for client in clients:
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        client.close()
    until_idle(server)
    assert server.post("/v1/completions", {**BODY, "max_tokens": 2}).status_code == 200
    assert server.metric('sglk_refusals_total{reason="queue_full"}') == 2


def test_waiting_prompt_tokens_are_bounded_too(make_server: Any) -> None:
    server = make_server(limits={"max_running": 1}, max_queued_tokens=1000)
    server.device.hold()
    client = connect(server)
    client.sendall(request_bytes({**BODY, "max_tokens": 4}))
    server.until(lambda: server.service.model.gate.num_answers == 1)
    refused = server.post("/v1/completions", {**BODY, "prompt": "x" * 8000})
    assert refused.status_code == 429 and "prompt tokens" in refused.text
    server.device.go()
    client.close()
    until_idle(server)


def test_time_limits_end_requests_by_name(make_server: Any) -> None:
    server = make_server(limits={"max_running": 1}, request_timeout=1.0, queue_timeout=0.15)
    server.device.pace = 0.005
    endless = {**BODY, "ignore_eos": True}
    first = connect(server)
    first.sendall(request_bytes(endless))
    server.until(lambda: server.metric("sglk_running") == 1)
    queued = server.post("/v1/completions", endless)
    assert (queued.status_code, queued.json()["error"]["code"]) == (504, "timeout")
    assert first.recv(4096).startswith(b"HTTP/1.1 504")
    stream = server.post("/v1/completions", {**endless, "stream": True})
    events = [e for e in stream.text.split("\n\n") if e]
    assert stream.status_code == 200 and len(events) > 2
    assert json.loads(events[-1][6:])["error"]["type"] == "timeout_error"
    with pytest.raises(openai.APIError, match="time limit"):
        list(server.openai.completions.create(**BODY, extra_body={"ignore_eos": True}, stream=True))
    assert server.metric('sglk_timeouts_total{limit="queue"}') == 1
    assert server.metric('sglk_timeouts_total{limit="request"}') == 3
    until_idle(server)
    first.close()


def test_silence_is_filled_so_that_proxies_keep_the_stream(make_server: Any) -> None:
    server = make_server(ping_interval=0.1)
    client = connect(server)
    server.device.hold()
    client.sendall(request_bytes({**BODY, "max_tokens": 2, "stream": True}))
    assert server.device.entered.wait(20)
    seen = b""
    while b": still working" not in seen:
        seen += client.recv(4096)
    server.device.go()
    while b"[DONE]" not in seen:
        seen += client.recv(4096)
    client.close()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b"null", 400, "invalid_json"),
        (b'{"model": "test", "prompt": NaN}', 400, "invalid_json"),
        (b'{"model": "test", "prompt": "\xff\xfe"}', 400, "invalid_json"),
        (b'{"model": "test", "prompt": "\\ud800"}', 400, "invalid_json"),
        (b'{"model": "test", "prompt": "a\x00b"}', 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b'{"model": "test", "prompt": ' + b"9" * 5000 + b"}", 400, "invalid_json"),
        (b'{"model": "test", "prompt": [' + b"1," * 600_000 + b"1]}", 413, "request_too_large"),
    ],
)
def test_malformed_bodies_are_refused(
    make_server: Any, body: bytes, status: int, code: str
) -> None:
    server = make_server(max_body_bytes=1_000_000)
    reply = server.http.post("/v1/completions", content=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), reply.text
    assert server.http.get("/health/ready").status_code == 200


def test_a_chunked_body_without_end_is_cut(make_server: Any) -> None:
    server = make_server(max_body_bytes=100_000)
    client = connect(server)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    client.sendall(head + b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
    reply = b""
    try:
        while b"413" not in reply:
            client.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            client.settimeout(0.01)
            try:
                reply += client.recv(4096)
            except TimeoutError:
                continue
    except OSError:
        pass  # the connection is closed after the refusal
    assert reply.startswith(b"HTTP/1.1 413") or reply == b""
    client.close()
    assert server.metric('sglk_refusals_total{reason="too_large"}') == 1


def test_headers_and_slow_senders_are_bounded(make_server: Any) -> None:
    server = make_server(max_header_bytes=4096, read_timeout=0.3)
    big = server.http.get("/health/live", headers={"x-big": "y" * 8000})
    assert (big.status_code, big.json()["error"]["code"]) == (431, "headers_too_large")
    endless = connect(server)
    endless.sendall(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 3000)
    assert b"400" in endless.recv(100)
    silent, half, body = (connect(server) for _ in range(3))
    half.sendall(b"GET / HT")
    body.sendall(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
    assert silent.recv(100) == b""
    assert half.recv(100) == b""
    assert body.recv(100).startswith(b"HTTP/1.1 408")
    assert server.metric('sglk_timeouts_total{limit="read"}') == 3
    for client in (endless, silent, half, body):
        client.close()


def test_a_thousand_idle_connections_change_nothing(make_server: Any) -> None:
    server = make_server()
    idle = [connect(server) for _ in range(1000)]
    server.until(lambda: server.metric("sglk_connections") >= 1000)
    assert server.chat().status_code == 200
    for client in idle:
        client.close()
    server.until(lambda: server.metric("sglk_connections") < 10)


def test_a_storm_of_disconnects_leaves_nothing(make_server: Any) -> None:
    server = make_server(limits={"max_running": 4, "num_pages": 100}, max_queued=500)
    for at in range(150):
        client = connect(server)
        client.sendall(request_bytes({**BODY, "prompt": f"{at % 7} " * 9, "stream": at % 2 == 0}))
        if at % 3 == 0:
            client.recv(10) if at % 2 == 0 else None
        client.close()
    until_idle(server)
    assert server.chat().status_code == 200
    assert server.metric('sglk_errors_total{kind="internal"}') == 0


def test_a_drain_ends_what_runs_and_refuses_what_comes(make_server: Any) -> None:
    server = make_server(drain_timeout=20)
    server.device.hold()
    got: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: got.append(server.chat(max_tokens=30)))
    thread.start()
    assert server.device.entered.wait(20)
    server.begin_stop()
    server.until(lambda: server.service.model.gate.is_draining)
    refused = server.chat()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    ready = server.http.get("/health/ready")
    assert (ready.status_code, ready.json()["detail"]) == (503, "draining")
    assert server.http.get("/health/live").status_code == 200
    server.device.go()
    thread.join(30)
    assert got[0].json()["usage"]["completion_tokens"] == 30
    assert server.stop() == 0


def test_a_drain_gives_up_after_its_limit(make_server: Any) -> None:
    server = make_server(drain_timeout=0.1)
    stream = connect(server)
    stream.sendall(request_bytes({**BODY, "stream": True, "max_tokens": 4000}))
    assert stream.recv(100)
    server.device.hold()
    assert server.device.entered.wait(20)
    server.begin_stop()
    server.until(lambda: server.service.model.thread.num_live == 0)
    server.device.go()
    seen = b""
    while chunk := stream.recv(65536):
        seen += chunk
    assert b'"error"' in seen and b"[DONE]" not in seen
    stream.close()
    assert server.stop() == 0


def test_a_failing_device_fails_answers_then_heals(make_server: Any) -> None:
    server = make_server(probe_interval=0.05, limits={"max_running": 2})
    inner = server.device._device
    inner.failures = 1
    assert server.chat().status_code == 200, "one failed step is tried again"
    assert server.metric('sglk_errors_total{kind="device"}') == 1
    inner.failures = 10**9
    failed = server.chat()
    assert failed.status_code == 500 and "the device is gone" in failed.text
    assert server.http.get("/health/ready").status_code == 503
    assert server.http.get("/health/live").status_code == 200
    reasons = server.http.get("/health/degraded").json()["reasons"]
    assert reasons == [{"reason": "device", "detail": "the device is gone"}]
    inner.failures = 0
    server.until(lambda: server.http.get("/health/ready").status_code == 200)
    assert server.chat().status_code == 200
    assert not server.http.get("/health/degraded").json()["degraded"]
    until_idle(server)


def test_a_bug_in_the_engine_ends_the_server_with_status_one(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()

    def broken(batch: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(server.device._device, "step", broken)
    reply = server.chat()
    assert reply.status_code == 500 and "a bug" in reply.text
    server._thread.join(30)
    assert server.status == 1


def test_a_step_that_hangs_is_reported_not_waited_for(make_server: Any) -> None:
    server = make_server(step_timeout=0.2, hang_timeout=1.0)
    server.device.hold()
    client = connect(server)
    client.sendall(request_bytes(BODY))
    assert server.device.entered.wait(20)
    server.until(lambda: server.http.get("/health/ready").status_code == 503)
    assert server.http.get("/health/live").status_code == 200
    reasons = server.http.get("/health/degraded").json()["reasons"]
    assert [each["reason"] for each in reasons] == ["slow_step"]
    assert server.http.get("/metrics").status_code == 200
    server.until(lambda: server.http.get("/health/live").status_code == 503)
    server.device.go()
    client.close()
    until_idle(server)
    server.until(lambda: server.http.get("/health/ready").status_code == 200)


def test_a_request_that_starves_is_reported(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    request = Request("r", [1], 1)
    monkeypatch.setattr(server.engine.scheduler, "overdue", lambda: [request])
    server.until(lambda: server.metric('sglk_degraded{reason="stalled"}') == 1)
    (reason,) = server.http.get("/health/degraded").json()["reasons"]
    assert "1 requests should have ended" in reason["detail"]
    assert server.chat().status_code == 200


def test_faults_of_clients_do_not_touch_health(make_server: Any) -> None:
    server = make_server()
    for _ in range(50):
        assert server.chat(frobnicate=1).status_code == 400
    assert server.http.get("/health/ready").status_code == 200
    assert server.http.get("/health/degraded").json() == {"degraded": False, "reasons": []}
    for kind in ("internal", "device", "engine"):
        assert server.metric(f'sglk_errors_total{{kind="{kind}"}}') == 0


def test_a_port_in_use_and_a_device_that_cannot_step_are_said_at_once(make_server: Any) -> None:
    server = make_server()
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(SglkError, match="--host, --port: expected an address"):
        make_server(port=port)


def test_a_model_whose_first_step_fails_never_becomes_ready(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglk.runtime.engine import Engine

    def fails(self: Any) -> Any:
        raise DeviceError("no kernel")

    monkeypatch.setattr(Engine, "step", fails)
    with pytest.raises(DeviceError, match=r"first step: expected a token, got none \(no kernel\)"):
        make_server()
