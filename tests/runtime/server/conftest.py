"""A real server on loopback, in a thread, over a device made of hashes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest
from sglk.runtime.admission import Limits
from sglk.runtime.chat import ChatTemplate
from sglk.runtime.engine import Engine
from sglk.runtime.executor import Executor
from sglk.runtime.llm import LLM
from sglk.runtime.server.keys import Keys
from sglk.runtime.server.serve import Running, serve
from sglk.runtime.server.settings import Settings
from sglk.runtime.tokenizer import GenerationConfig, Tokenizer
from sglk.targets.device import StepBatch

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HERMES = (
    "{% if tools %}<|im_start|>system\nTools:\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Held:
    """A device whose steps wait while `hold` is in force, so that tests need no sleep."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._go = threading.Event()
        self._go.set()
        self.entered = threading.Event()
        """Set while a step waits."""
        self.pace = 0.0
        """Seconds that each step takes at least: a long answer stays long on a fast machine."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def hold(self) -> None:
        self.entered.clear()
        self._go.clear()

    def go(self) -> None:
        self._go.set()

    def step(self, batch: StepBatch) -> Any:
        if not self._go.is_set():
            self.entered.set()
            assert self._go.wait(60)
        if self.pace:
            threading.Event().wait(self.pace)
        return self._device.step(batch)


class Server:
    """One server and the ways to talk to it."""

    def __init__(self, llm: LLM, device: Held, settings: Settings, **more: Any) -> None:
        self.device, self.llm = device, llm
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.running: Running | None = None
        self.status: int | None = None
        self.error: BaseException | None = None
        self._args = (settings, more)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(30)
        if self.error is not None:
            raise self.error
        self.url = self._running.url
        self.http = httpx2.Client(base_url=self.url, timeout=60)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused-key", max_retries=0)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        """Raises what ended the server if it does not come up."""
        try:
            while self.http.get("/health/ready").status_code != 200:
                if self.service.phase == "failed":
                    break
            else:
                return
        except httpx2.TransportError:
            pass
        self._thread.join(30)
        self._close_clients()
        assert self.error is not None
        raise self.error

    @property
    def _running(self) -> Running:
        assert self.running is not None
        return self.running

    @property
    def service(self) -> Any:
        return self._running.service

    @property
    def engine(self) -> Engine:
        return self.llm.engine

    def post(self, path: str, body: Any, **more: Any) -> httpx2.Response:
        return self.http.post(path, json=body, **more)

    def chat(self, text: str = "hello", **fields: Any) -> httpx2.Response:
        messages = fields.pop("messages", [{"role": "user", "content": text}])
        body = {"model": "test", "messages": messages, "temperature": 0, "max_tokens": 8, **fields}
        return self.post("/v1/chat/completions", body)

    def metric(self, name: str) -> float:
        """The value of one series, named as in the exposition."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")

    def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        """Ask again and again; each look is a request to the server, so no sleep is needed."""
        import time

        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come true"
            self.http.get("/health/live")

    def call(self, function: Callable[[], Any]) -> Any:
        """Run something on the server's loop."""
        assert self._loop is not None
        done: Any = asyncio.run_coroutine_threadsafe(_called(function), self._loop)
        return done.result(30)

    def is_partitioned(self) -> bool:
        """Whether no page is held and every page is accounted for."""
        pool = self.engine.scheduler.kv.pool
        self.engine.scheduler.check()
        return pool.num_held == 0 and pool.num_free + pool.num_cached == pool.total

    def begin_stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._running.stop)

    def stop(self) -> int:
        self.device.go()
        if self._thread.is_alive():
            self.begin_stop()
            self._thread.join(30)
        assert not self._thread.is_alive()
        self._close_clients()
        assert self.status is not None
        return self.status

    def _close_clients(self) -> None:
        self.http.close()
        self.openai.close()

    def _run(self) -> None:
        settings, more = self._args

        def started(running: Running) -> None:
            self._loop = asyncio.get_running_loop()
            self.running = running
            self._started.set()

        try:
            self.status = asyncio.run(
                serve(
                    lambda phases: self.llm,
                    settings,
                    on_started=started,
                    handle_signals=False,
                    **more,
                )
            )
        except BaseException as error:
            self.error = error
            self._started.set()
            if not isinstance(error, Exception):
                raise


async def _called(function: Callable[[], Any]) -> Any:
    return function()


@pytest.fixture(scope="session")
def serve_tokenizer(byte_level: Any) -> Tokenizer:
    """Every byte is a token; ends with ``</s>`` or ``<|im_end|>``."""
    end = [byte_level.token_to_id(name) for name in ("<|im_end|>", "</s>")]
    return Tokenizer(byte_level, GenerationConfig(tuple(end), byte_level.token_to_id("<s>")))


@pytest.fixture(scope="session")
def build_server(fake: SimpleNamespace, serve_tokenizer: Tokenizer) -> Callable[..., Server]:
    """``build_server(max_queued=2, limits={"max_running": 1})``: a started server; stop it."""

    def build(
        *, limits: dict[str, Any] | None = None, template: str = CHAT, keys: Any = (),
        admin_keys: Any = (), log_folder: str | None = None, **settings: Any,
    ) -> Server:  # fmt: skip
        chosen = {"page_size": 4, "num_pages": 2000, "max_step_tokens": 64, "max_running": 32}
        bounds = Limits(**{**chosen, "max_context": 4096, **(limits or {})})
        vocab = serve_tokenizer.backend.get_vocab_size()
        device = Held(
            fake.HashDevice(bounds.num_pages, bounds.page_size, bounds.max_step_tokens, vocab)
        )
        engine = Engine(
            Executor(device, bounds),
            bounds,
            serve_tokenizer,
            serve_tokenizer.config,
        )
        template_ = ChatTemplate(template, serve_tokenizer.special_tokens)
        llm = LLM(engine, chat_template=template_)
        return Server(
            llm,
            device,
            Settings(**{"model_name": "test", "port": 0, **settings}),
            keys=Keys(keys),
            admin_keys=Keys(admin_keys),
            log_folder=log_folder,
        )

    return build


@pytest.fixture
def make_server(build_server: Callable[..., Server]) -> Iterator[Callable[..., Server]]:
    """`build_server`, stopped after the test."""
    made: list[Server] = []

    def make(**options: Any) -> Server:
        made.append(build_server(**options))
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture(scope="session")
def shared_server(build_server: Callable[..., Server]) -> Iterator[Server]:
    server = build_server()
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """A server that tests share; after each nothing may be left in it."""
    yield shared_server
    shared_server.until(lambda: shared_server.service.model.thread.num_live == 0)
    shared_server.until(shared_server.is_partitioned)


@pytest.fixture(scope="session")
def hermes() -> str:
    """A chat template with tool calls, as Qwen and Hermes write them."""
    return HERMES
