"""Attention as one op: the torch op ``sglk::attention`` and its registration with transformers.

transformers calls the function registered under a model's attention implementation with q, k, v,
and hands it what the mask function of the same name made. Ours makes a `MaskKind` instead of a
tensor, so the captured graph holds the kind of the mask (full, sliding window) and not the mask.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import FrontendError

IMPLEMENTATION = "sglk"
"""Name of the attention implementation, as in ``from_config(..., attn_implementation="sglk")``."""

SPELLED_OUT = "eager"
"""transformers' implementation of plain products and masks, which a pass can recognise again."""
FAR = 1 << 20  # a position past every window in use, to tell full attention from a large window
_MEANINGFUL = ("position_bias", "head_mask", "alibi", "indices", "block_indices")
"""Arguments that some models give to attention and that change its result."""


class OwnAttention(FrontendError):
    """A model that computes attention or masks itself: it may work spelled out."""


@torch.library.custom_op("sglk::attention", mutates_args=())
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """q [B, H, T, D], k, v [B, KVH, T, D] -> [B, T, H, D], as `ir.ops.attention.Attention`."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    positions = torch.arange(q.shape[2], device=q.device)
    hidden = ~MaskKind(causal, window).sees(positions[:, None], positions[None, :])
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1).to(scores.dtype)
        return (torch.cat((scores, column), -1).softmax(-1)[..., :-1] @ v).transpose(1, 2).clone()
    return (scores.softmax(-1) @ v).transpose(1, 2).contiguous()


@attention.register_fake
def _attention_shape(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3]))


@dataclass(frozen=True)
class MaskKind:
    """Which keys a query sees, in place of a mask tensor; any tensor operation on it is refused."""

    causal: bool
    window: int | None = None

    def sees(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Truth for query positions ``q`` and key positions ``k``, broadcast."""
        seen = torch.ones_like(q * k, dtype=torch.bool)
        if self.causal:
            seen = seen & (k <= q)
        return seen if self.window is None else seen & (k > q - self.window)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        raise _used_as_tensor(getattr(func, "__name__", str(func)))

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.Tensor, name) and not name.startswith("__"):
            raise _used_as_tensor(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _used_as_tensor(name: str) -> OwnAttention:
    return OwnAttention(
        "attention mask: expected a model that calls transformers' AttentionInterface, got one "
        f"that applies {name} to the mask itself (this architecture is not supported)"
    )


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise _used_as_tensor(name)

    return refuse


for _name in ("getitem", "add", "sub", "mul", "and", "or", "invert", "neg", "lt", "gt"):
    setattr(MaskKind, f"__{_name}__", _refuse(_name))


def mask_kind(*, mask_function: Callable[..., Any], **details: Any) -> MaskKind:
    """The mask function given to transformers: names the kind of a mask by asking for its values.

    ``local_size`` is the window that transformers announces; the values at its edges decide.
    """
    window = details.get("local_size")
    candidates = [MaskKind(True), MaskKind(False)]
    if window is not None:
        candidates.insert(0, MaskKind(True, int(window)))
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        q, k = _probes(window)
        try:
            seen = mask_function(torch.tensor(0), torch.tensor(0), q, k).expand(len(q), len(q))
            for kind in candidates:
                if torch.equal(seen, kind.sees(q, k)):
                    return kind
        except (RuntimeError, TypeError, AttributeError) as error:
            raise _unknown_mask(mask_function) from error  # it depends on traced tensors
    raise _unknown_mask(mask_function)


def mask_tensor(
    *, q_length: int, kv_length: int, dtype: torch.dtype = torch.float32, **details: Any
) -> torch.Tensor:
    """The mask function for attention that is spelled out: 0 or the lowest number, [1, 1, Q, K].

    Made of positions alone, so that nothing of a padding mask is left in the graph.
    """
    kind = mask_kind(**details)
    seen = kind.sees(torch.arange(q_length)[:, None], torch.arange(kv_length)[None, :])
    zero = torch.zeros((), dtype=dtype)
    return torch.where(seen, zero, torch.finfo(dtype).min)[None, None]


@contextlib.contextmanager
def plain_masks() -> Iterator[None]:
    """While a model is captured spelled out: its masks come from `mask_tensor`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as FUNCTIONS

    FUNCTIONS[SPELLED_OUT] = mask_tensor
    try:
        yield
    finally:
        del FUNCTIONS[SPELLED_OUT]  # type: ignore[no-untyped-call]


def _probes(window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Query positions [N, 1] and key positions [1, N] around 0, at the window's edges, far away."""
    centres = {0, 8, 64, FAR} | ({window, 2 * window, 3 * window} if window is not None else set())
    points = torch.tensor(sorted({max(c + d, 0) for c in centres for d in range(-3, 4)}))
    return points[:, None], points[None, :]


def _unknown_mask(mask_function: Callable[..., Any]) -> FrontendError:
    return FrontendError(
        "attention mask: expected causal, sliding-window or full attention, got "
        f"{mask_function.__qualname__} (chunked, packed and prefix masks are not supported)"
    )


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **details: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function given to transformers."""
    where = type(module).__name__
    if not isinstance(attention_mask, MaskKind):
        raise OwnAttention(
            f"{where}: expected a mask made by transformers' mask functions, got "
            f"{type(attention_mask).__name__} (this architecture makes masks of its own)"
        )
    if extra := [name for name in _MEANINGFUL if details.get(name) is not None]:
        raise OwnAttention(
            f"{where}: expected attention of q, k, v, scale, window, softcap and sinks, "
            f"got {', '.join(extra)} (this architecture is not supported)"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    sinks = s_aux if s_aux is not None else details.get("sinks")
    causal, window = attention_mask.causal, attention_mask.window
    return attention(query, key, value, scale, causal, window, softcap, sinks), None


@functools.cache
def register() -> None:
    """Make ``attn_implementation="sglk"`` known to transformers; once per process."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, attend)
    AttentionMaskInterface.register(IMPLEMENTATION, mask_kind)
