"""Scans put in place of transformers' own give the same numbers, for any number of tokens."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sglk.bench.tiny_config import tiny_config
from sglk.frontend.capture import build_without_weights
from sglk.frontend.recurrence import ROLES, replacement, role_of, scans_as_ops

TOKENS = (1, 5, 19)
Function = Callable[..., Any]


def theirs(model_type: str, role: str) -> Function:
    """transformers' function of a role in the file of a model."""
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    found: list[Function] = [f for f in vars(module).values() if role_of(f) == role]
    (function,) = found
    return function


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def first(result: Any) -> torch.Tensor:
    found: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return found


def same(model_type: str, role: str, *args: Any, **kwargs: Any) -> None:
    wanted = first(theirs(model_type, role)(*args, **kwargs))
    got = first(ROLES[role](*args, **kwargs))
    torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("tokens", TOKENS)
def test_selective_scan(tokens: int) -> None:
    u, dt, z = (normal(1, 6, tokens) for _ in range(3))
    operands = (u, dt, -normal(6, 4).exp(), normal(1, 4, tokens), normal(1, 4, tokens))
    bias = {"delta_bias": normal(6), "delta_softplus": True}
    same("mamba", "selective_scan_fn", *operands, D=normal(6), z=z, **bias)
    same("mamba", "selective_scan_fn", u, dt.abs(), *operands[2:])


@pytest.mark.parametrize("limit", [(0.0, float("inf")), (0.3, 0.9)])
@pytest.mark.parametrize("tokens", TOKENS)
def test_chunk_scan(tokens: int, limit: tuple[float, float]) -> None:
    x, dt, a = normal(1, tokens, 4, 3), normal(1, tokens, 4), -normal(4).exp()
    b, c = normal(1, tokens, 2, 5), normal(1, tokens, 2, 5)
    same(
        "mamba2", "mamba_chunk_scan_combined", x, dt, a, b, c, chunk_size=8, D=normal(4),
        dt_bias=normal(4), dt_softplus=True, dt_limit=limit,
    )  # fmt: skip


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("tokens", TOKENS)
def test_gated_delta_rule(tokens: int, norm: bool) -> None:
    q, k = (torch.nn.functional.normalize(normal(1, tokens, 2, 6), dim=-1) for _ in range(2))
    v, g = normal(1, tokens, 4, 3), -normal(1, tokens, 4).abs()
    beta = torch.rand(1, tokens, 4, dtype=torch.float64)
    for role in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"):
        same("qwen3_next", role, q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=norm)


@pytest.mark.parametrize("tokens", TOKENS)
def test_delta_rule_with_decays_of_keys(tokens: int) -> None:
    q, k, v = normal(1, tokens, 2, 6), normal(1, tokens, 2, 6), normal(1, tokens, 2, 3)
    g, beta = -normal(1, tokens, 2, 6).abs(), torch.rand(1, tokens, 2, dtype=torch.float64)
    same("kimi_linear", "chunk_kda", q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)


@pytest.mark.parametrize("tokens", TOKENS)
def test_real_gated_scan(tokens: int) -> None:
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

    scan = RecurrentGemmaRglru._rnn_scan
    x, gate = normal(1, tokens, 6), torch.rand(1, tokens, 6, dtype=torch.float64)
    reset = (torch.arange(tokens) == 0)[None, :, None]
    ours = replacement("_rnn_scan", scan)
    assert ours is not None
    wanted = scan(None, x, gate, reset, None, torch.float64)  # type: ignore[arg-type]
    got = ours(None, x, gate, reset, None)
    torch.testing.assert_close(got[0], wanted[0].double(), rtol=1e-4, atol=1e-5)


def test_functions_are_replaced_only_while_a_model_is_captured() -> None:
    import transformers.models.mamba.modeling_mamba as modeling

    before = dict(vars(modeling))
    with scans_as_ops(build_without_weights(tiny_config("mamba"))):
        changed = {n for n, f in vars(modeling).items() if before.get(n) is not f}
        assert changed == {"mamba_selective_scan"}
    assert vars(modeling) == before


def test_another_function_of_the_same_name_is_left_alone() -> None:
    def _rnn_scan(self: Any, hidden_states: Any) -> None:
        """Other parameters."""

    assert replacement("_rnn_scan", _rnn_scan) is None
    assert replacement("print", print) is None
