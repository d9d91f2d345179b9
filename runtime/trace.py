"""Traces of requests: when each came, what its prompt shares with others, how long its answer was.

One JSON object per line, in one of two forms:

    {"arrival_s": 1.5, "prompt_tokens": 700, "output_tokens": 120, "hash_ids": [4, 9]}
    {"timestamp": 1500, "input_length": 700, "output_length": 120, "hash_ids": [4, 9]}

The second is Mooncake's (timestamp in milliseconds). Prompts are equal as far as their ``hash_ids``
are: one per block of 512 tokens (``block_tokens`` says otherwise), the last block may be partial.
Without ``hash_ids`` a prompt shares nothing. ``priority`` and ``cache_salt`` may be given too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SglkError

BLOCK_TOKENS = 512
_MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class TraceRequest:
    """One line of a trace."""

    number: int
    """Its place in the trace."""
    arrival_s: float
    num_prompt: int
    num_output: int
    hash_ids: tuple[int, ...] | None = None
    block_tokens: int = BLOCK_TOKENS
    priority: int = 0
    cache_salt: str = ""

    def prompt(self) -> NDArray[np.int32]:
        """Token ids that are equal where the hash ids are; no model's, only the cache's.

        >>> a = TraceRequest(0, 0.0, 5, 1, (1, 2), 4).prompt()
        >>> b = TraceRequest(1, 0.0, 6, 1, (1, 3), 4).prompt()
        >>> (a[:4] == b[:4]).all(), a[4] == b[4]
        (np.True_, np.False_)
        """
        if self.hash_ids is None:
            tokens = np.zeros(self.num_prompt, dtype=np.int32)
            tokens[0] = -1 - self.number
            return tokens
        blocks = np.repeat(np.array(self.hash_ids, dtype=np.int64), self.block_tokens)
        places = np.tile(np.arange(self.block_tokens), len(self.hash_ids))
        tokens64 = (blocks * self.block_tokens + places) % (2**31 - 1)
        return tokens64[: self.num_prompt].astype(np.int32)


def read_trace(lines: Iterable[str], where: str) -> list[TraceRequest]:
    """Requests in order of arrival, or `SglkError` naming the line.

    >>> read_trace(['{"timestamp": 1500, "input_length": 9, "output_length": 2}'], "t")[0].arrival_s
    1.5
    """
    requests: list[TraceRequest] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                requests.append(_read(json.loads(line), len(requests)))
            except (ValueError, TypeError, KeyError) as error:
                reason = f"no {error}" if isinstance(error, KeyError) else error
                raise SglkError(
                    f"{where}: line {number}: expected a request with arrival_s, prompt_tokens and "
                    f"output_tokens, or Mooncake's fields, got {line.strip():.80} ({reason})"
                ) from error
    if not requests:
        raise SglkError(f"{where}: expected a request per line, got none")
    return sorted(requests, key=lambda request: (request.arrival_s, request.number))


def _read(record: Mapping[str, Any], number: int) -> TraceRequest:
    is_mooncake = "timestamp" in record
    names = ("input_length", "output_length") if is_mooncake else ("prompt_tokens", "output_tokens")
    arrival = float(record["timestamp"]) / 1000 if is_mooncake else float(record["arrival_s"])
    num_prompt, num_output = (_whole(record, name, 1) for name in names)
    block = _whole(record, "block_tokens", 1) if "block_tokens" in record else BLOCK_TOKENS
    hash_ids = record.get("hash_ids")
    if not 0 <= arrival < float("inf"):
        raise ValueError(f"arrival at {arrival} s")
    if hash_ids is not None:
        hash_ids = tuple(int(each) for each in hash_ids)
        if any(each < 0 for each in hash_ids) or len(hash_ids) != -(-num_prompt // block):
            raise ValueError(f"{len(hash_ids)} hash_ids for {num_prompt} tokens of {block} each")
    priority, salt = record.get("priority", 0), str(record.get("cache_salt", ""))
    return TraceRequest(number, arrival, num_prompt, num_output, hash_ids, block, priority, salt)


def _whole(record: Mapping[str, Any], name: str, low: int) -> int:
    value = record[name]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= _MAX_TOKENS:
        raise ValueError(f"{name}: {value!r} is no whole number >= {low}")
    return value
