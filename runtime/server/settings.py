"""Everything a server can be told, with its default and its check."""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from dataclasses import dataclass, fields

from ...errors import SglkError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits are there to be hit: each refusal names the one that was, and how to change it."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback has to be asked for."""
    port: int = 8000
    """0 picks a free one."""
    model_name: str = ""
    """What clients call the model; empty: the artifact's file name."""
    max_queued: int = 256
    """Answers that may wait for a place; one more gets 429."""
    max_queued_tokens: int = 262_144
    """Prompt tokens that may wait; so that few huge prompts count as many small ones."""
    max_body_bytes: int = 8 * 2**20
    """Longest request body."""
    max_header_bytes: int = 64 * 2**10
    """Longest request line and headers together."""
    max_choices: int = 16
    """Most answers of one request: ``n`` times the number of prompts."""
    max_connections: int = 4096
    """Open connections; one more is answered 503."""
    request_timeout: float = 600.0
    """Seconds from the request to the end of its answer."""
    queue_timeout: float = 120.0
    """Seconds a request may wait for its first token."""
    read_timeout: float = 30.0
    """Seconds between a connection or a piece of a request and the next one."""
    write_timeout: float = 30.0
    """Seconds a client may take nothing while pieces of its answer wait."""
    keep_alive: float = 75.0
    """Seconds an idle connection stays open after a response."""
    ping_interval: float = 15.0
    """Seconds of silence after which a stream gets a comment, so that proxies keep it open."""
    step_timeout: float = 30.0
    """Seconds a step of the device may take before the server is called not ready."""
    hang_timeout: float = 300.0
    """Seconds a step may take before the server is called dead."""
    probe_interval: float = 10.0
    """Seconds without a step after which readiness asks for a real one."""
    drain_timeout: float = 30.0
    """Seconds that running answers get after SIGTERM."""
    drain_delay: float = 0.0
    """Seconds between SIGTERM and refusing requests, for load balancers to notice."""
    default_max_tokens: int | None = None
    """Longest answer of a chat that names none; None: what fits."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is None or isinstance(value, str):
                continue
            low = 0 if option.name in ("port", "max_queued", "drain_delay", "drain_timeout") else 1
            is_time = isinstance(option.default, float)
            if not math.isfinite(value) or (value <= 0 if is_time and low else value < low):
                raise SglkError(
                    f"--{option.name.replace('_', '-')}: expected a number "
                    f"{'> 0' if is_time and low else f'>= {low}'}, got {value!r}"
                )
        if self.port > 65535:
            raise SglkError(f"--port: expected at most 65535, got {self.port}")
        if self.model_name and not re.fullmatch(r"[\w./:@+-]{1,200}", self.model_name):
            raise SglkError(
                "--model-name: expected letters, digits and ./:@+-_ only, "
                f"got {self.model_name!r:.80}"
            )


def documentation() -> dict[str, str]:
    """What stands under each field above: the command line's help says the same."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(Settings))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: str(text.value.value)
        for field, text in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
