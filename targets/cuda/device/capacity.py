"""How many pages fit in a share of the free memory, beside weights and what steps need."""

from __future__ import annotations

from typing import cast

from ....errors import DeviceError
from ...artifact import Artifact
from ...dim_code import parse
from .executable import TYPICAL_SEQS, state_bytes
from .memory import aligned
from .program_code import ProgramCode
from .step_sizes import corners
from .weights import place

MOST_TOKENS = 1 << 22
"""More than prompts ever share: the host notes something of every page."""


def pages_that_fit(
    artifact: Artifact, code: ProgramCode, free: int, share: float, max_tokens: int
) -> int:
    """Pages for the decoder step ``code`` where so many bytes are free."""
    sizes = {key: cast("dict[str, int]", artifact.manifest[key]) for key in ("target", "model")}
    page_size = sizes["target"]["page_size"]
    context = sizes["model"].get("context_length") or page_size
    one, two = (sum(state_bytes(s.bytes, pages) for s in code.states) for pages in (1, 2))
    most = MOST_TOKENS // page_size
    if two == one:  # nothing is kept of a token
        return most
    weights = place(artifact, code.weights)[1]
    taken = weights + _step_bytes(code, max_tokens, -(-context // page_size)) + 2 * one - two
    count = (int(free * share) - taken) // (two - one)
    if count < 2:
        raise DeviceError(
            f"{artifact.path}: expected room for 2 pages of {two - one:,} bytes beside"
            f" {taken:,} bytes of weights and steps, got {share:.0%} of {free:,} free bytes (end"
            " other programs on the device, raise the share, or take a smaller model)"
        )
    return min(count, most)


def _step_bytes(code: ProgramCode, max_tokens: int, pages: int) -> int:
    """Intermediate results and logits of the largest usual step."""
    arena = parse(code.sizes[code.arena_bytes], code.all_symbols)
    outputs = [parse(buffer.bytes, code.all_symbols) for buffer in code.outputs]
    found = []
    for sizes in corners(max_tokens, min(max_tokens, TYPICAL_SEQS), pages):
        known = {**sizes._asdict(), "num_pages": 1}
        found.append(sum(aligned(size.evaluate(known)) for size in (arena, *outputs)))
    return max(found)
