"""Scans as one op: the torch op ``sglk::linear_recurrence``, and what is put in place of scans.

transformers' scans in plain torch loop over tokens, or over chunks of them, which fixes the number
of tokens at capture. A model calls them by their role, under which a kernel could be registered
too: ``selective_scan_fn``, ``mamba_chunk_scan_combined``, ``chunk_gated_delta_rule``,
``chunk_kda``. While a model is captured, functions of these roles (whatever their names are, in
whatever model) are ours: the arithmetic before and after the scan in plain ops, the scan as the op.
Methods that loop without such a role are known by name and parameters.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

Function = Callable[..., Any]


@torch.library.custom_op("sglk::linear_recurrence", mutates_args=())
def linear_recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    rate: torch.Tensor | None,
    beta: torch.Tensor | None,
) -> torch.Tensor:
    """q, k [B, T, G, K], v [B, T, H, V] -> [B, T, H, V], as `LinearRecurrence` of `ir`."""
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    factors = decay if decay.dim() == 4 else decay[..., None]
    if rate is not None:
        factors = torch.exp(factors * rate)
    state = v.new_zeros((v.shape[0], v.shape[2], k.shape[3], v.shape[3]))
    rows = []
    for t in range(v.shape[1]):
        state = state * factors[:, t, :, :, None]
        added = v[:, t]
        if beta is not None:
            added = (added - (state * k[:, t, :, :, None]).sum(2)) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * added[:, :, None]
        rows.append((state * q[:, t, :, :, None]).sum(2))
    return torch.stack(rows, 1)


@linear_recurrence.register_fake
def _recurrence_shape(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    rate: torch.Tensor | None,
    beta: torch.Tensor | None,
) -> torch.Tensor:
    return v.new_empty(v.shape)


def selective_scan(
    u: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    """u, dt [B, D, T], A [D, N], B, C [B, N, T] -> [B, D, T]: a state of N numbers per channel."""
    dt = _steps(dt if delta_bias is None else dt + delta_bias[..., None], delta_softplus)
    added = (dt * u).transpose(1, 2)[..., None]
    k, q = (x.transpose(1, 2)[:, :, None] for x in (B, C))
    y = linear_recurrence(q, k, added, dt.transpose(1, 2), A, None)[..., 0].transpose(1, 2)
    if D is not None:
        y = y + u * D[None, :, None]
    y = y if z is None else y * F.silu(z)
    return (y, None) if return_last_state else y


def chunk_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int = 0,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    **_: Any,
) -> Any:
    """x [B, T, H, P], dt [B, T, H], A [H], B, C [B, T, G, N] -> [B, T, H, P]."""
    dt = _steps(dt if dt_bias is None else dt + dt_bias, dt_softplus)
    low, high = (None if abs(bound) == math.inf else bound for bound in dt_limit)
    if low is not None or high is not None:
        dt = torch.clamp(dt, low, high)
    y = linear_recurrence(C, B, x * dt[..., None], torch.exp(dt * A), None, None)
    if D is not None:
        y = y + x * D[..., None]
    y = y if z is None else y * F.silu(z)
    return (y, None) if return_final_states else y


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """q, k [B, T, G, K], v [B, T, H, V], beta [B, T, H]; g, the log of decays, [B, T, H(, K)]."""
    if use_qk_l2norm_in_kernel:
        query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    q = query * query.shape[-1] ** -0.5
    return linear_recurrence(q, key, value, torch.exp(g), None, beta), None


def real_gated_scan(
    module: Any,
    hidden_states: torch.Tensor,
    recurrent_gate: torch.Tensor,
    reset: torch.Tensor,
    recurrent_states: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """[B, T, D] by factors of the same shape; a state starts from zeros, so nothing is reset."""
    one = torch.ones((1, 1, 1, 1)).expand(*hidden_states.shape[:2], 1, 1)
    y = linear_recurrence(one, one, hidden_states[..., None], recurrent_gate, None, None)
    return y[..., 0], None


def _steps(dt: torch.Tensor, softplus: bool) -> torch.Tensor:
    return F.softplus(dt) if softplus else dt


ROLES: dict[str, Function] = {
    "selective_scan_fn": selective_scan,
    "mamba_chunk_scan_combined": chunk_scan,
    "chunk_gated_delta_rule": delta_rule,
    "fused_recurrent_gated_delta_rule": delta_rule,
    "chunk_kda": delta_rule,
    "fused_recurrent_kda": delta_rule,
}
"""By the name under which transformers looks for a kernel."""
SIGNATURES: dict[tuple[str, tuple[str, ...]], Function] = {
    (
        "_rnn_scan",
        ("self", "hidden_states", "recurrent_gate", "reset", "recurrent_states", "acc_dtype"),
    ): real_gated_scan,
}
"""By name and parameters, for loops without a role."""


def role_of(function: Any) -> str | None:
    """The role that transformers' decorator gave a function, which it keeps in its closure."""
    while callable(function):
        code = getattr(function, "__code__", None)
        if code is not None and "func_name" in code.co_freevars and function.__closure__:
            cell = function.__closure__[code.co_freevars.index("func_name")]
            return str(cell.cell_contents)
        function = getattr(function, "__wrapped__", None)
    return None


def replacement(name: str, function: Any) -> Function | None:
    """What takes a function's place while a model is captured, if anything does."""
    if not inspect.isfunction(function):
        return None
    if (role := role_of(function)) is not None:
        return ROLES.get(role)
    if any(name == known for known, _ in SIGNATURES):
        return SIGNATURES.get((name, tuple(inspect.signature(function).parameters)))
    return None


@contextlib.contextmanager
def scans_as_ops(model: torch.nn.Module) -> Iterator[None]:
    """While a model is captured: functions in its modules' classes and files are replaced."""
    classes = {cls for module in model.modules() for cls in type(module).__mro__}
    homes: list[Any] = [cls for cls in classes if cls.__module__.startswith("transformers.")]
    homes += {id(m): m for m in (sys.modules[cls.__module__] for cls in homes)}.values()
    found = [
        (home, name, function, new)
        for home in homes
        for name, function in list(vars(home).items())
        if (new := replacement(name, function)) is not None
    ]
    for home, name, function, new in found:
        setattr(home, name, functools.wraps(function)(new))
    try:
        yield
    finally:
        for home, name, function, _ in found:
            setattr(home, name, function)
