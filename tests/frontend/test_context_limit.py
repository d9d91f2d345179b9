"""Choices among keys: the context ends where every key is chosen, and only whole choices go."""

from __future__ import annotations

import logging

import pytest
import torch
from sglk.errors import FrontendError
from sglk.frontend.capture import capture_causal_lm
from sglk.frontend.hf import context_length
from sglk.frontend.torch_module import load_module
from sglk.ir.ops.order import TopK
from transformers import AutoConfig


class Choose(torch.nn.Module):
    """Rows of four numbers with the largest ``k`` set to zero."""

    def __init__(self, k: int, dim: int = -1) -> None:
        super().__init__()
        self.k, self.dim = k, dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.scatter(self.dim, x.topk(self.k, dim=-1).indices.to(torch.int32).long(), 0.0) * 2


@pytest.mark.parametrize(("k", "dim", "ordered"), [(4, -1, 0), (4, 1, 0), (3, -1, 1), (4, 0, 1)])
def test_only_a_choice_of_everything_along_its_axis_is_left_out(
    k: int, dim: int, ordered: int
) -> None:
    graph = load_module(Choose(k, dim), [torch.randn(4, 4)]).graph
    live = [node for node in graph.nodes if isinstance(node.op, TopK)]
    assert len(live) == ordered


def test_the_context_ends_where_keys_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    config = AutoConfig.for_model("deepseek_v32", index_topk=40, max_position_embeddings=256)
    with caplog.at_level(logging.WARNING):
        assert context_length(config) == 40
    assert "the context is 40 tokens, as far as every key is chosen, instead of 256" in caplog.text
    config.index_topk = 512
    assert context_length(config) == 256


def test_a_context_of_a_few_tokens_is_refused_and_one_below_zero_is_none() -> None:
    config = AutoConfig.for_model("llama", num_hidden_layers=1, max_position_embeddings=7)
    with pytest.raises(FrontendError, match="expected a context of more than 7 tokens, got 7"):
        capture_causal_lm(config)
    assert context_length(AutoConfig.for_model("xlnet")) == 0
