"""Expert layers as products by expert id: the torch op ``sglk::expert_linear``, registered.

transformers calls the function registered under a model's experts implementation with the tokens,
the ids of the chosen experts and their weights. Ours keeps tokens and choices as axes of their own,
[tokens, k, width], so nothing in the graph sorts tokens by expert or counts them: how a product
reads its weights is left to the target.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .attention import IMPLEMENTATION


@torch.library.custom_op("sglk::expert_linear", mutates_args=())
def expert_linear(x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """x [T, K] or [T, k, K], weight [E, N, K], ids [T, k] -> [T, k, N], as `ir.ops.moe`."""
    rows = x if x.dim() == 3 else x[:, None].expand(*ids.shape, x.shape[-1])
    return torch.einsum("tjk,tjnk->tjn", rows, weight[ids])


@expert_linear.register_fake
def _expert_linear_shape(x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return x.new_empty((ids.shape[0], ids.shape[1], weight.shape[1]))


def run_experts(
    module: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """The experts function given to transformers."""
    first = "gate_up_proj" if module.has_gate else "up_proj"
    inner = _project(module, first, hidden_states, top_k_index)
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    outer = _project(module, "down_proj", inner, top_k_index)
    if module.has_post_expert_norm:
        outer = module.post_expert_norm(outer)
    total: torch.Tensor = (outer * top_k_weights.unsqueeze(-1)).sum(1).to(hidden_states.dtype)
    return total


def _project(module: Any, name: str, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """One projection of every chosen expert, with its bias if experts have one."""
    weight = getattr(module, name)
    rows = weight.transpose(1, 2) if module.is_transposed else weight
    y: torch.Tensor = expert_linear(x, rows, ids)
    if module.has_bias:
        y = y + getattr(module, f"{name}_bias")[ids]
    return y


@functools.cache
def register() -> None:
    """Make ``experts_implementation="sglk"`` known to transformers; once per process."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, run_experts)
