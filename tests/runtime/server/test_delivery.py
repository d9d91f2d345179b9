"""How answers reach their clients: in order, whatever these do, and with nothing left behind."""

from __future__ import annotations

import gc
import json
import platform
import socket
import subprocess
import sys
import threading
from types import FrameType, SimpleNamespace
from typing import Any

from sglk.runtime.server.engine_thread import FAR_BEHIND

BODY: Any = {"model": "test", "prompt": "hello", "max_tokens": 2000, "temperature": 0}
SMALL_BUFFER = 2048


def asking(server: Any, body: Any, buffer: int | None = None) -> socket.socket:
    """A connection that has sent a completion request, and reads nothing by itself."""
    client = socket.socket()
    if buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    host, port = server.url.removeprefix("http://").split(":")
    client.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n"
    client.sendall(head.encode() + b"connection: close\r\n\r\n" + data)
    return client


def until_idle(server: Any) -> None:
    server.until(lambda: server.service.model.thread.num_live == 0)
    server.until(lambda: not server.engine.has_work and server.is_partitioned())


def test_a_slow_reader_holds_nobody_up_and_is_dropped(make_server: Any) -> None:
    server = make_server(write_timeout=0.3)
    ask = {**BODY, "max_tokens": 1000, "stream": True, "logprobs": 20, "ignore_eos": True}
    client = asking(server, {**ask, "n": 2, "temperature": 1.0}, SMALL_BUFFER)
    quick = server.post("/v1/completions", {**BODY, "max_tokens": 20})
    assert quick.status_code == 200
    server.until(lambda: server.metric('sglk_timeouts_total{limit="write"}') == 1)
    until_idle(server)
    client.close()
    assert server.metric("sglk_blocked_streams") == 0


def test_a_reader_that_pauses_gets_every_piece_in_order(make_server: Any) -> None:
    server = make_server()
    # Several times what the system buffers (256 KB), also where a busy machine sends large pieces.
    ask = {**BODY, "max_tokens": 2000, "logprobs": 20, "ignore_eos": True}
    whole = server.post("/v1/completions", ask).json()["choices"][0]
    client = asking(server, {**ask, "stream": True}, SMALL_BUFFER)
    server.until(lambda: server.metric("sglk_blocked_streams") == 1)
    with client.makefile("rb") as response:
        lines = response.read().split(b"\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    streamed = [token for choice in choices for token in choice["logprobs"]["tokens"]]
    assert streamed == whole["logprobs"]["tokens"] and len(streamed) == 2000
    client.close()


def test_requests_leave_nothing_for_the_garbage_collector(server: Any) -> None:
    def ask() -> None:
        server.post("/v1/completions", {**BODY, "prompt": [1, 2, 3], "max_tokens": 3})
        server.chat("hello", stream=True, max_tokens=3)
        client = asking(server, {**BODY, "stream": True})
        client.recv(64)
        client.close()
        until_idle(server)

    ask()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        ask()
        gc.collect()
        ours = [each for each in gc.garbage if type(each).__module__.startswith("sglk.")]
        frames = [each for each in gc.garbage if isinstance(each, FrameType)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not ours
    assert not [frame for frame in frames if "runtime" in frame.f_code.co_filename]


def test_the_heap_of_a_server_keeps_fixed_sizes() -> None:
    # In a process of its own: what is asked for here lasts as long as the process.
    code = "from sglk.runtime.server.memory import keep_heap_flat; print(keep_heap_flat())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(platform.libc_ver()[0] == "glibc")


def test_metrics_are_true_in_the_middle_of_a_long_step(make_server: Any) -> None:
    server = make_server()
    server.device.hold()
    client = asking(server, BODY)
    assert server.device.entered.wait(20)
    assert server.metric("sglk_running") == server.metric("sglk_in_flight") == 1
    client.close()
    server.device.go()
    until_idle(server)


def test_a_loop_that_is_stuck_holds_the_engine_up_for_a_moment_once(make_server: Any) -> None:
    server = make_server()
    server.device.pace = 2 * FAR_BEHIND
    client = asking(server, {**BODY, "max_tokens": 8})
    server.until(lambda: server.metric("sglk_running") == 1)
    waits: list[float] = []
    server.service.model.thread._caught_up = SimpleNamespace(
        clear=lambda: None, set=lambda: None, wait=waits.append
    )

    def sit_on_the_loop() -> None:
        while server.engine.has_work:
            threading.Event().wait(FAR_BEHIND)

    server.call(sit_on_the_loop)
    assert waits == [FAR_BEHIND]
    until_idle(server)
    client.close()
