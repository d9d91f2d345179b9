"""From an artifact to a server that answers, and from SIGTERM to a clean end.

The socket is bound first, so that a port in use is known at once and health can be asked while the
model loads. Then load, self-test, a real step; only then is the server ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import uvicorn

from ... import __version__
from ...errors import ArtifactError, DeviceError, SglkError
from ...targets.registry import open_device
from ..llm import LLM
from .app import App
from .engine_thread import EngineThread
from .keys import Keys
from .memory import keep_heap_flat
from .protocol import limited_protocol
from .request_log import RequestLog
from .service import Model, Service
from .settings import Settings
from .startup import Phases

log = logging.getLogger(__name__)
_COLLECTOR_THRESHOLDS = (4_000, 10, 10)
"""Young objects per search among these, and such searches per search among older ones."""
Load = Callable[[Phases], LLM]
"""Opens the artifact, checks it and gives the model; runs in a worker. Ends its own phases."""


@dataclass
class Running:
    """A server that has started; `stop` ends it."""

    service: Service
    url: str
    stop: Callable[[], None]
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: ours drain first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    load: Load,
    settings: Settings,
    *,
    keys: Keys | None = None,
    admin_keys: Keys | None = None,
    log_folder: str | None = None,
    phases: Phases | None = None,
    on_started: Callable[[Running], None] = lambda running: None,
    handle_signals: bool = True,
) -> int:
    """Serve until told to stop; the exit status: 0, or 1 if the engine died or never came up."""
    keep_heap_flat()
    phases = phases or Phases(time.monotonic())
    service = Service(settings, keys or Keys([]), admin_keys or Keys([]), RequestLog(log_folder))
    listener = _bind(settings)
    stopping = asyncio.Event()
    server = _make_server(service, settings)
    running = Running(service, _url(listener), stopping.set)
    loop = asyncio.get_running_loop()
    app: App = server.config.app  # type: ignore[assignment]
    http = asyncio.create_task(server.serve(sockets=[listener]))
    sweeper = asyncio.create_task(app.health.sweep())
    if handle_signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: _signalled(stopping, server))
    try:
        on_started(running)
        await _start(service, load, settings, phases, stopping)
        with _seldom_collecting():
            await stopping.wait()
            await _drain(service, settings, server)
    finally:
        server.should_exit = True
        await http
        sweeper.cancel()
        _close(service)
        running.finished.set()
    is_well = service.load_error is None and (
        service.model is None or service.model.thread.death is None
    )
    return 0 if is_well else 1


@contextlib.contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Look for garbage seldom, and never among what was loaded: it stays.

    Each token makes some tuples, so that the default would have the engine search all the time; of
    them none is part of a cycle.
    """
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _bind(settings: Settings) -> socket.socket:
    """A listening socket, or the sentence about why there is none."""
    where = f"{settings.host}:{settings.port}"
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
            stack.pop_all()
    except OSError as error:
        raise SglkError(
            f"--host, --port: expected an address to listen on, got {where} "
            f"({error.strerror or error})"
        ) from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _make_server(service: Service, settings: Settings) -> _Server:
    _raise_file_limit(settings.max_connections)

    def read_timeout() -> None:
        service.metrics.timeouts["read"] += 1

    config = uvicorn.Config(
        App(service),
        http=limited_protocol(settings.max_header_bytes, settings.read_timeout, read_timeout),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=settings.keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=5,
        loop="asyncio",
    )
    server = _Server(config)
    service.connections = lambda: len(server.server_state.connections)
    return server


def _raise_file_limit(connections: int) -> None:
    """Each connection is an open file; take what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if soft < wanted and soft != resource.RLIM_INFINITY:
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _signalled(stopping: asyncio.Event, server: _Server) -> None:
    """The first signal drains, the second does not wait."""
    if stopping.is_set():
        server.force_exit = True
    stopping.set()


async def _start(
    service: Service, load: Load, settings: Settings, phases: Phases, stopping: asyncio.Event
) -> None:
    """Load, step, declare ready. What cannot be loaded ends the server, with the sentence."""
    phases.end("listen")
    loading = asyncio.create_task(asyncio.to_thread(load, phases))
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not loading.done():
        (await loading).close()
        return
    llm = await loading
    thread = EngineThread(
        llm.engine,
        service.metrics,
        service.state,
        request_timeout=settings.request_timeout,
        queue_timeout=settings.queue_timeout,
        on_death=lambda error: stopping.set(),
    )
    model = Model(llm, settings.model_name, thread, settings)
    thread.start()
    service.model = model
    phases.end("text")
    service.phase = "ready"
    if not await service.probe(settings.step_timeout):
        service.phase = "failed"
        why = thread.death or thread.failure or "it did not end in time"
        raise DeviceError(f"first step: expected a token, got none ({why})")
    phases.end("first step")
    service.state.phases = phases
    service.state.is_ready = True
    service.state.limits = _limits(model, settings)
    _describe(service, llm, settings)
    log.info("%s", phases.as_text())


def _describe(service: Service, llm: LLM, settings: Settings) -> None:
    """What is loaded, for the page and the metrics."""
    state = service.state
    state.info = {"model": settings.model_name, "version": __version__}
    artifact = llm.artifact
    if artifact is None:
        return
    model = cast(dict[str, Any], artifact.manifest["model"])
    target = cast(dict[str, Any], artifact.manifest["target"])
    for name in ("architecture", "quant", "dtype", "kv_dtype"):
        state.info[name] = str(model.get(name, ""))
    state.info["target"] = str(target["name"])
    state.weight_bytes = artifact.weight_bytes(artifact.weights)
    state.page_bytes = open_device(state.info["target"]).kv_bytes_per_page(artifact)


def _limits(model: Model, settings: Settings) -> dict[str, int]:
    limits = model.limits
    return {
        "max_running": limits.max_running,
        "max_queued": settings.max_queued,
        "max_step_tokens": limits.max_step_tokens,
        "max_context": min(limits.max_context, 2**31 - 1),
        "pages": limits.num_pages - 1,
        "page_size": limits.page_size,
    }


async def _drain(service: Service, settings: Settings, server: _Server) -> None:
    """Refuse what is new, let what runs end, then abort what is left."""
    model = service.model
    service.phase = "draining"
    service.state.is_ready = False
    if model is None or model.thread.death is not None:
        return
    if settings.drain_delay:
        await _while(lambda: not server.force_exit, settings.drain_delay)
    model.gate.is_draining = True
    log.info("draining: %d answers are under way", model.thread.num_live)
    await _while(
        lambda: model.thread.num_live > 0 and not server.force_exit, settings.drain_timeout
    )
    left = model.thread.num_live
    if left:
        log.warning("draining: %d answers did not end within %g s", left, settings.drain_timeout)
    for exchange in model.thread.live_exchanges:
        model.thread.abort(exchange)
    await _while(lambda: bool(service.streams), 1.0)


async def _while(goes_on: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while goes_on() and time.monotonic() < until:
        await asyncio.sleep(0.02)


def _close(service: Service) -> None:
    model = service.model
    if model is not None:
        if model.thread.stop(timeout=5.0):
            model.close()
        else:
            log.error("the engine is in a step that does not end; leaving it behind")
    service.log.close()


def check_artifact(llm: LLM, results: Any) -> None:
    """Refuse to serve an artifact whose self-test fails here."""
    failed = [case for case in results if not case.passed]
    if failed:
        case = failed[0]
        raise ArtifactError(
            f"self-test {case.name}: expected an error of at most {case.tolerance:g}, "
            f"got {case.error:g} (compile the artifact again for this machine)"
        )
