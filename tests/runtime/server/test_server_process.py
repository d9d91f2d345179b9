"""``sglk serve`` as a process: what it loads, signals, kill -9 under load, faults at the start."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sglk.cli import main

COMPILER = {
    "torch", "triton", "sympy", "transformers", "onnx", "gguf", "safetensors", "pickle5",
    "sglk.driver", "sglk.ir", "sglk.passes", "sglk.frontend", "sglk.targets.cpu.compile",
    "sglk.targets.tilec", "sglk.targets.kernels", "sglk.targets.lowering",
}  # fmt: skip
BODY: Any = {"prompt": "hello", "temperature": 0, "max_tokens": 12}


class Process:
    """One server, started from the command line."""

    def __init__(self, artifact: Path, *options: str) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sglk", "serve", str(artifact), "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", line), self.end()
        self.http = httpx2.Client(base_url=line, timeout=60)
        while self.http.get("/health/ready").status_code != 200:
            assert self.process.poll() is None, self.end()
        self.ready_after = time.monotonic() - self.started
        self.model = self.http.get("/v1/models").json()["data"][0]["id"]

    def complete(self, **fields: Any) -> httpx2.Response:
        return self.http.post("/v1/completions", json={"model": self.model, **BODY, **fields})

    def end(self, number: int = signal.SIGTERM) -> str:
        """Standard error, after a signal if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=30)
        return err


@pytest.fixture
def start(tiny_artifact: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def run(*options: str) -> Process:
        made.append(Process(tiny_artifact, *options))
        return made[-1]

    yield run
    for each in made:
        each.end(signal.SIGKILL)
        each.http.close()


def test_it_serves_the_artifact_and_ends_well(start: Any, tmp_path: Path) -> None:
    server = start("--log-dir", str(tmp_path / "logs"), "--kv-memory", "8MiB")
    assert server.model == "tiny"
    answer = server.complete()
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] > 0
    metrics = server.http.get("/metrics").text
    assert 'sglk_info{architecture="llama"' in metrics
    phases = re.findall(r'startup_phase_seconds\{phase="([^"]+)"\}', metrics)
    assert phases == ["imports", "listen", "runtime", "load", "self-test", "text", "first step"]
    err = server.end()
    assert server.process.returncode == 0, err
    assert "ready in" in err and "draining" in err and "Traceback" not in err
    assert (tmp_path / "logs" / "requests.jsonl").read_text().count("\n") == 1
    assert "ready in" in (tmp_path / "logs" / "server.log").read_text()


def test_greedy_text_is_that_of_the_library(start: Any, tiny_artifact: Path) -> None:
    import sglk

    server = start()
    with sglk.load(tiny_artifact) as llm:
        for prompt in ("hello", "a b c d", "é世"):
            expected = llm.generate(prompt, max_tokens=12)
            assert server.complete(prompt=prompt).json()["choices"][0]["text"] == expected.text


def test_kill_9_under_load_leaves_nothing_and_the_next_start_is_quick(
    start: Any, tiny_artifact: Path
) -> None:
    before = {path.name for path in tiny_artifact.parent.iterdir()}
    server = start()
    reference = server.complete().json()["choices"]
    failures: list[str] = []

    def load() -> None:
        try:
            with httpx2.Client(base_url=server.http.base_url, timeout=30) as client:
                while True:
                    client.post("/v1/completions", json={"model": server.model, **BODY})
        except httpx2.TransportError as error:
            failures.append(type(error).__name__)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    while json.loads(server.http.get("/health/degraded").text)["degraded"] is None:
        pass
    server.complete()
    os.kill(server.process.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(30)
    assert len(failures) == 8, "every client learned of it"
    port = server.http.base_url.port
    again = start("--port", str(port))
    assert again.complete().json()["choices"] == reference
    ready = again.http.get("/health/ready").json()["startup_seconds"]
    text = again.http.get("/metrics").text
    loading = sum(
        float(value)
        for phase, value in re.findall(r'startup_phase_seconds\{phase="([^"]+)"\} (\S+)', text)
        if phase in ("load", "self-test", "text", "first step")
    )
    assert loading < 2.0 and ready < 20, text
    assert {path.name for path in tiny_artifact.parent.iterdir()} == before


def test_ctrl_c_twice_does_not_wait_for_answers(start: Any) -> None:
    server = start("--drain-timeout", "300")
    port = server.http.base_url.port
    body = {"model": server.model, **BODY, "max_tokens": 200, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body) as stream:
        pieces = stream.iter_bytes()
        next(pieces)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        for _ in pieces:
            pass
    server.process.wait(30)
    assert server.process.returncode == 0


def test_serving_loads_no_compiler(tiny_artifact: Path) -> None:
    program = (
        "import sys, asyncio, threading, os, signal\n"
        "from sglk.runtime.server import serve\n"
        "before = serve.Running\n"
        "from sglk.runtime.server.service import Service\n"
        "probe = Service.probe\n"
        "async def probed(self, timeout):\n"
        "    done = await probe(self, timeout)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return done\n"
        "Service.probe = probed\n"
        "from sglk.cli import main\n"
        "status = main(['serve', sys.argv[1], '--port', '0'])\n"
        "print(*sys.modules, file=sys.stderr)\n"
        "sys.exit(status)"
    )
    command = [sys.executable, "-c", program, str(tiny_artifact)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stderr.split())
    assert "sglk.runtime.server.app" in loaded and not COMPILER & loaded


def test_running_a_prompt_does_not_load_the_server(tiny_artifact: Path) -> None:
    program = (
        "import sys, sglk\n"
        "with sglk.load(sys.argv[1]) as llm: llm.generate('a', max_tokens=1)\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tiny_artifact)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"starlette", "uvicorn", "llguidance", "asyncio"} & set(done.stdout.split())


def test_no_pickle_is_read_anywhere_in_the_server() -> None:
    import sglk.runtime.server as package

    folder = Path(package.__file__).parent
    for file in folder.rglob("*.py"):
        assert not re.search(r"\b(pickle|marshal|shelve|eval\(|exec\()", file.read_text()), file


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-queued", "-1"], "--max-queued: expected a number >= 0, got -1"),
        (["--request-timeout", "0"], "--request-timeout: expected a number > 0, got 0"),
        (["--request-timeout", "nan"], "--request-timeout: expected a number > 0, got nan"),
        (["--port", "70000"], "--port: expected at most 65535, got 70000"),
        (["--model-name", "a b"], "--model-name: expected letters"),
        (["--api-key-env", "NOT_THERE"], r"--api-key-env: expected a key in \$NOT_THERE"),
        (["--kv-memory", "much"], "--kv-memory: expected a size such as 512MiB, got 'much'"),
        (["--audit-cache", "2"], "--audit-cache: expected a share such as 0.1%, got '2'"),
        (["--host", "no.such.host.invalid"], "--host, --port: expected an address to listen on"),
    ],
)
def test_options_are_refused_in_a_sentence(
    tiny_artifact: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert main(["serve", str(tiny_artifact), "--port", "0", *options]) == 1
    err = capsys.readouterr().err
    assert re.search(sentence, err), err
    assert all(line.startswith("sglk serve: ") for line in err.splitlines())


def test_an_artifact_that_is_none_ends_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.sglk"
    path.write_bytes(b"no zip")
    assert main(["serve", str(path), "--port", "0"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("sglk serve: ") and "broken.sglk" in err
