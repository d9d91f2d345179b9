"""The vendor's compiler, out of process: its Triton lives in another Python environment.

`Toolchain` starts `toolchain_worker.py` with that environment's Python and talks to it in lines of
JSON. Everything that a foreign process can do wrong becomes one sentence: it may not start, crash,
hang, answer garbage or half an answer, be of another version, or not make a kernel. Imports the
standard library only, so that a machine without our compiler can finish an artifact.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ...errors import LoweringError

WORKER = Path(__file__).with_name("toolchain_worker.py")
PROTOCOL = 1
TIMEOUT = 600.0
"""Seconds for one kernel; the vendor's autotuned products take minutes."""
START_TIMEOUT = 120.0
"""Seconds to import Triton."""
LEAST_TRITON, MOST_TRITON = (3, 0), (3, 6)
"""FlagTree's Triton for XPU; kernels keep to what 3.0 compiles, newer ones were never tried."""
BACKEND = "xpu"
BINARY = "xpubin"
WARP_SIZE = 1
END_TIMEOUT = 10.0
"""Seconds for a process that has nothing left to do."""
WHERE = "kunlun toolchain"
TAIL = 5
"""Lines of the compiler's messages that an error shows."""


@dataclass(frozen=True)
class Versions:
    """What the other environment has."""

    python: str
    triton: str
    flagtree: str
    backends: tuple[str, ...]


@dataclass(frozen=True)
class Binary:
    """One compiled kernel, and what the compiler says of it."""

    data: bytes
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """What Triton compiles for; the defaults are a Kunlun chip's."""

    arch: int
    backend: str = BACKEND
    warp_size: int = WARP_SIZE
    binary: str = BINARY


def xpu_target(arch: str) -> Target:
    """``xpu3`` is architecture 3.

    >>> xpu_target("xpu3").arch
    3
    """
    number = arch.removeprefix(BACKEND)
    if not number.isdecimal():
        raise LoweringError(f"{WHERE}: expected an arch such as xpu3, got {arch!r}")
    return Target(int(number))


class Toolchain:
    """A running worker. Use it as a context manager; `hello` first, then `modules`, then `compile`.

    ``command`` is the other environment's Python, or anything that speaks the protocol.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout: float = TIMEOUT,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self.command = list(command)
        self.timeout = timeout
        self.start_timeout = start_timeout
        self._cleanup = contextlib.ExitStack()
        self._messages: IO[bytes] | None = None
        self._writer: threading.Thread | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def with_python(python: str, **options: float) -> Toolchain:
        """The worker of this package in the environment of ``python``."""
        return Toolchain([python, str(WORKER)], **options)

    def __enter__(self) -> Self:
        self._messages = self._cleanup.enter_context(tempfile.TemporaryFile())
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
            )
        except OSError as error:
            self._cleanup.close()
            raise LoweringError(
                f"{WHERE}: cannot start {self.command[0]}: {error.strerror or error} "
                "(name the Python that has the vendor's Triton)"
            ) from error
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            self._cleanup.callback(_close, pipe)
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process = self._process
        assert process is not None
        if error is None:
            self._send({"kind": "end"})
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_TIMEOUT)
        process.kill()
        process.wait()
        self._cleanup.close()

    def hello(self, target: Target) -> Versions:
        """Versions of the other side, held against what our kernels are written for."""
        request = {"kind": "hello", "protocol": PROTOCOL, "backend": target.backend}
        reply = self._ask(request, "hello", self.start_timeout)
        if reply.get("protocol") != PROTOCOL:
            raise LoweringError(
                f"{WHERE}: expected protocol {PROTOCOL}, got {reply.get('protocol')!r} "
                "(the worker is of another sglk)"
            )
        texts = [str(reply.get(name, "")) for name in ("python", "triton", "flagtree")]
        versions = Versions(texts[0], texts[1], texts[2], tuple(reply.get("backends") or ()))
        check_versions(versions, target)
        return versions

    def modules(self, sources: Mapping[str, str]) -> None:
        """The kernel modules, by name."""
        self._ask({"kind": "modules", "modules": dict(sources)}, "ok", self.start_timeout)

    def compile(self, symbol: str, kernel: Mapping[str, Any], target: Target) -> Binary:
        """One kernel of a source record."""
        module, _, function = str(kernel["function"]).rpartition(".")
        request = {
            "kind": "compile",
            "symbol": symbol,
            "module": module,
            "function": function,
            "signature": kernel["signature"],
            "constants": kernel["constants"],
            "options": kernel.get("options", {}),
            **vars(target),
        }
        reply = self._ask(request, "compiled", self.timeout, symbol)
        return _binary(symbol, reply)

    def _ask(
        self, request: Mapping[str, Any], wanted: str, timeout: float, symbol: str = ""
    ) -> dict[str, Any]:
        what = f"kernel {symbol}" if symbol else str(request["kind"])
        self._send(request)
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            assert self._process is not None
            self._process.kill()
            raise LoweringError(
                f"{WHERE}: {what}: no answer within {timeout:g} s (--timeout gives it more)"
            ) from None
        reply = self._parsed(line, what)
        if reply.get("kind") == "failed":
            raise LoweringError(f"{WHERE}: {what}: {reply.get('error', 'no reason given')}")
        if reply.get("kind") != wanted or reply.get("symbol", symbol) != symbol:
            got = f"{reply.get('kind')!r} for {reply.get('symbol', '')!r}"
            raise LoweringError(f"{WHERE}: {what}: expected an answer {wanted!r}, got {got}")
        return reply

    def _send(self, request: Mapping[str, Any]) -> None:
        """In a thread: whoever does not read must not hold us up."""
        line = json.dumps(request).encode() + b"\n"
        self._writer = threading.Thread(target=self._write, args=(line,), daemon=True)
        self._writer.start()

    def _write(self, line: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        # An error: it has ended, and reading says how.
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _read(self, pipe: IO[bytes]) -> None:
        """In a thread: lines as they come, then an empty one for the end."""
        for line in pipe:
            self._lines.put(line)
        self._lines.put(b"")

    def _parsed(self, line: bytes, what: str) -> dict[str, Any]:
        if not line:
            raise LoweringError(f"{WHERE}: {what}: {self._ending()}")
        if not line.endswith(b"\n"):
            raise LoweringError(
                f"{WHERE}: {what}: the answer stops after {len(line)} bytes; {self._ending()}"
            )
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise LoweringError(f"{WHERE}: {what}: expected a line of JSON, got {line[:80]!r}")
        return reply

    def _ending(self) -> str:
        """How the process ended, and the last it said."""
        assert self._process is not None and self._messages is not None
        try:
            code = self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            return "it closed its output and goes on"
        how = f"it was killed by signal {-code}" if code < 0 else f"it ended with status {code}"
        self._messages.seek(0)
        tail = self._messages.read().decode(errors="replace").strip().splitlines()[-TAIL:]
        return "\n  ".join([how, *tail])


def _close(pipe: IO[bytes]) -> None:
    """The other end may be gone with what was not yet sent."""
    with contextlib.suppress(OSError):
        pipe.close()


def check_versions(versions: Versions, target: Target) -> None:
    """Refuse a Triton that lacks the chip or that our kernels were not written for."""
    if target.backend not in versions.backends:
        have = ", ".join(versions.backends) or "none"
        raise LoweringError(
            f"{WHERE}: expected a Triton with the back end {target.backend}, got {have} "
            "(FlagTree built with FLAGTREE_BACKEND=xpu has it)"
        )
    parts = versions.triton.split(".")[:2]
    found = tuple(int(part) for part in parts if part.isdecimal())
    if target.backend == BACKEND and not LEAST_TRITON <= found <= MOST_TRITON:
        least, most = (".".join(map(str, v)) for v in (LEAST_TRITON, MOST_TRITON))
        raise LoweringError(
            f"{WHERE}: expected Triton {least} to {most}, got {versions.triton!r} "
            "(kernels are written for these)"
        )


def _binary(symbol: str, reply: Mapping[str, Any]) -> Binary:
    """The bytes of an answer, once size and hash are right."""
    where = f"{WHERE}: kernel {symbol}"
    try:
        data = base64.b64decode(str(reply.get("data", "")), validate=True)
    except (binascii.Error, ValueError) as error:
        raise LoweringError(f"{where}: expected base64, got {error}") from error
    if not data:
        raise LoweringError(f"{where}: expected a binary, got none")
    if len(data) != reply.get("bytes") or hashlib.sha256(data).hexdigest() != reply.get("sha256"):
        raise LoweringError(
            f"{where}: expected {reply.get('bytes')} bytes of the stated hash, got {len(data)}"
        )
    metadata = reply.get("metadata")
    if not isinstance(metadata, dict):
        raise LoweringError(f"{where}: expected metadata, got {metadata!r}")
    return Binary(data, metadata)
