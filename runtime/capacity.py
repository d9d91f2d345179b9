"""What fits into a memory budget: pages, and how many requests of which length side by side.

The figures come from the artifact: bytes of its weights, and the sizes of its program's states,
intermediate results and outputs as expressions over the largest step. `load(memory=...)` takes its
pages from here, so what `sglk plan` prints is what a server enforces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ..errors import RequestError, SglkError
from ..targets.artifact import LOAD_SYMBOLS, SLOTS, Artifact, Program
from ..targets.dim_code import parse

DEFAULT_KV_TOKENS = 8192
"""Tokens that the pages hold unless a budget says otherwise."""
HOST_BYTES = 160 * 2**20
"""Set aside for the interpreter, its packages, the tokenizer, requests and the server."""
PAGE_HOST_BYTES = 768
"""Set aside per page for the page pool and the radix tree, besides 4 bytes per token."""
_TYPICAL_SEQS = 256
"""Devices size their intermediate results for this many sequences even when fewer may run."""
_GROWTH = 1.5
"""A region that grows may be rounded up by half."""
_MAX_PAGES = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """A memory budget and what it holds. All sizes in bytes.

    >>> plan = Capacity(memory=10_000, host=1000, weights=3000, intermediate=500, outputs=500,
    ...                 states=0, page_bytes=500, page_size=4, num_pages=10, max_running=8,
    ...                 max_step_tokens=64, max_context=24)
    >>> plan.longest(3), plan.most(9), plan.free
    (12, 3, 0)
    """

    memory: int
    """The whole budget."""
    host: int
    weights: int
    intermediate: int
    outputs: int
    states: int
    """What states take besides pages: a slot for each of `max_running` requests and one more."""
    page_bytes: int
    """Of one page: keys and values of all layers, and the host's accounting."""
    page_size: int
    """Tokens per page."""
    num_pages: int
    """The reserved page 0 included."""
    max_running: int
    max_step_tokens: int
    max_context: int

    @property
    def fixed(self) -> int:
        """Everything but pages."""
        return self.host + self.weights + self.intermediate + self.outputs + self.states

    @property
    def free(self) -> int:
        """What is left of the budget: less than a page."""
        return self.memory - self.fixed - self.num_pages * self.page_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens that all pages hold."""
        return (self.num_pages - 1) * self.page_size

    def longest(self, concurrency: int) -> int:
        """Tokens (prompt and answer) that each of so many requests may have side by side."""
        pages = (self.num_pages - 1) // concurrency
        return min(self.max_context, pages * self.page_size)

    def most(self, length: int) -> int:
        """Requests of this many tokens that run side by side, none waiting for another's pages."""
        pages = -(-length // self.page_size)
        return min(self.max_running, (self.num_pages - 1) // pages)

    def by_concurrency(self) -> list[tuple[int, int]]:
        """(requests, tokens each) for 1, 2, 4, ... and `max_running` requests."""
        counts = [2**n for n in range(self.max_running.bit_length()) if 2**n < self.max_running]
        table = [(count, self.longest(count)) for count in [*counts, self.max_running]]
        return [(count, length) for count, length in table if length]

    def by_length(self) -> list[tuple[int, int]]:
        """(tokens, requests side by side) for lengths in powers of two, and the longest."""
        longest = self.longest(1)
        lengths = [2**n for n in range(7, longest.bit_length()) if 2**n < longest]
        return [(length, self.most(length)) for length in [*lengths, longest]]

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        names = [name for name in self.__dataclass_fields__ if name != "memory"]
        return {
            "memory": self.memory,
            **{name: getattr(self, name) for name in names},
            "num_tokens": self.num_tokens,
            "by_concurrency": [{"requests": n, "tokens": t} for n, t in self.by_concurrency()],
            "by_length": [{"tokens": t, "requests": n} for t, n in self.by_length()],
        }


def plan_capacity(
    artifact: Artifact,
    *,
    memory: int,
    max_step_tokens: int = 512,
    max_running: int = 32,
    max_context: int | None = None,
) -> Capacity:
    """What ``memory`` bytes hold; `SglkError` when not even one page is left."""
    if "step" not in artifact.entries:
        raise RequestError(
            f"{artifact.path}: expected a decoder, got the entries {', '.join(artifact.entries)}"
        )
    program = artifact.program("step")
    target = cast(Mapping[str, Any], artifact.manifest["target"])
    model = cast(Mapping[str, Any], artifact.manifest["model"])
    page_size = int(target["page_size"])
    context = min(int(model.get("context_length") or 2**31 - 1), max_context or 2**31 - 1)
    rows = min(max_running, max_step_tokens)
    largest = {
        "tokens": max_step_tokens,
        "seqs": max(rows, min(max_step_tokens, _TYPICAL_SEQS)),
        "rows": max(rows, min(max_step_tokens, _TYPICAL_SEQS)),
        "pages": -(-context // page_size),
    }
    one, two = (_state_bytes(program, pages, slots=1 + rows) for pages in (1, 2))
    parts = {
        "host": HOST_BYTES,
        "weights": artifact.weight_bytes(program.weights),
        "intermediate": _grown(program, program.arena_bytes, largest),
        "outputs": sum(
            _grown(program, buffer.bytes, largest | {"rows": rows}) for buffer in program.outputs
        ),
        "states": 2 * one - two,
    }
    page_bytes = two - one + PAGE_HOST_BYTES + 4 * page_size
    num_pages = min((memory - sum(parts.values())) // page_bytes, _MAX_PAGES)
    if num_pages < 2:
        sizes = ", ".join(f"{name} {size:,}" for name, size in parts.items())
        least = sum(parts.values()) + 2 * page_bytes
        raise SglkError(
            f"memory: expected at least {least:,} bytes ({sizes}, 2 pages of {page_bytes:,}), "
            f"got {memory:,} (give more, or lower max_step_tokens or max_running)"
        )
    return Capacity(
        memory=memory,
        page_bytes=page_bytes,
        page_size=page_size,
        num_pages=num_pages,
        max_running=rows,
        max_step_tokens=max_step_tokens,
        max_context=context,
        **parts,
    )


def kv_pages(artifact: Artifact, kv_memory: int | None) -> int:
    """Pages for so many bytes of keys and values (None: 8192 tokens), the reserved one included."""
    page_size = int(cast(Mapping[str, Any], artifact.manifest["target"])["page_size"])
    if kv_memory is None:
        return 1 + -(-DEFAULT_KV_TOKENS // page_size)
    program = artifact.program("step")
    return pages_within(kv_memory, _state_bytes(program, 2) - _state_bytes(program, 1), page_size)


def slots_for(artifact: Artifact, seqs: int) -> dict[str, int]:
    """What a device is asked for at load so that ``seqs`` sequences run side by side: nothing, or
    where the model keeps states beside its pages, a slot for each and the reserved one."""
    has_slots = SLOTS in cast(list[str], artifact.manifest["features"])
    return {"num_slots": 1 + seqs} if has_slots else {}


def pages_within(kv_memory: int, page_bytes: int, page_size: int) -> int:
    """Pages that a budget for keys and values holds, or `SglkError` if it is less than two.

    A model without attention has none: its pages count tokens and cost what the host notes of them.
    """
    page_bytes = page_bytes or PAGE_HOST_BYTES + 4 * page_size
    count = kv_memory // page_bytes
    if count < 2:
        raise SglkError(
            f"kv_memory: expected at least {2 * page_bytes} bytes (2 pages of {page_size} tokens), "
            f"got {kv_memory}"
        )
    return count


def _state_bytes(program: Program, num_pages: int, slots: int = 0) -> int:
    env = {"num_pages": num_pages, "num_slots": slots}
    return sum(parse(state.bytes, LOAD_SYMBOLS).evaluate(env) for state in program.states)


def _grown(program: Program, text: str, largest: Mapping[str, int]) -> int:
    """A size at the largest step, rounded up as regions that grow are.

    The number of pages is not known yet; no size but that of a state depends on it.
    """
    size = parse(text, program.all_symbols)
    return int(size.evaluate({**largest, "num_pages": 1, "num_slots": 1}) * _GROWTH)
