"""How many prefill tokens a step may take beside those who decode."""

from __future__ import annotations

from collections.abc import Sequence

from .admission import Limits
from .batch import Chunk
from .step_model import StepModel


def prefill_budget(limits: Limits, decoding: Sequence[Chunk], model: StepModel) -> int:
    """Prefill tokens of the next step, never less than `Limits.least_prefill`.

    With nobody decoding a step is full. Otherwise prefill takes at most `Limits.prefill_share` of
    the step's tokens, and no more than keeps the step within `Limits.itl_target_s` by the model.
    Until steps with prefill were timed, the target is met by the smallest chunks.
    """
    room = limits.max_step_tokens - len(decoding)
    if not decoding:
        return room
    least = min(limits.least_prefill, room)
    room = min(room, int(limits.prefill_share * limits.max_step_tokens))
    if limits.itl_target_s is not None:
        context = sum(chunk.end for chunk in decoding)
        fits = model.prefill_within(limits.itl_target_s, len(decoding), context)
        room = min(room, fits or 0)
    return max(least, room)
