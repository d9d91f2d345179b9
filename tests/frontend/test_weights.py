"""Weight sources of any kind: aliases, and the check against what a graph wants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sglk.errors import FrontendError
from sglk.frontend.safetensors_source import SafetensorsSource, open_weights
from sglk.frontend.weights import WeightSource, check_against, tie_embedding, without_false_ties

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


@pytest.fixture
def source(tmp_path: Path) -> SafetensorsSource:
    tensors = {EMBED: torch.ones(8, 4), NORM: torch.ones(4), HEAD: torch.zeros(8, 4)}
    save_file(tensors, tmp_path / "model.safetensors")
    return open_weights(tmp_path)


def test_sources_satisfy_the_protocol(source: SafetensorsSource) -> None:
    assert isinstance(source, WeightSource)
    assert isinstance(tie_embedding(source, tied=True), WeightSource)


def test_a_matching_source_passes(source: SafetensorsSource) -> None:
    check_against(source, {EMBED: (8, 4), NORM: (4,)})


def test_every_fault_is_named_at_once(source: SafetensorsSource) -> None:
    wanted = {EMBED: (8, 5), NORM: (4,), "model.a": (1,), "model.b": (2, 2), HEAD: (9, 4)}
    with pytest.raises(FrontendError) as caught:
        check_against(source, wanted)
    message = str(caught.value)
    assert message.startswith(f"{source.where}: expected the 5 tensors that the model's config")
    assert "model.a is missing; model.b is missing" in message
    assert f"{EMBED} has shape [8, 4] instead of [8, 5]" in message
    assert f"{HEAD} has shape [8, 4] instead of [9, 4]" in message
    assert NORM not in message


def test_an_unknown_name_is_refused(source: SafetensorsSource) -> None:
    with pytest.raises(FrontendError, match=r"expected a tensor model\.x, got none"):
        source.read("model.x")
    with pytest.raises(FrontendError, match=r"expected a tensor model\.x, got none"):
        tie_embedding(source, tied=True).info("model.x")


def test_tying_wins_over_a_stored_copy(source: SafetensorsSource) -> None:
    tied = tie_embedding(source, tied=True)
    np.testing.assert_array_equal(tied.read(HEAD), np.ones((8, 4), np.float32))
    assert sorted(tied.names()) == sorted([EMBED, NORM, HEAD])
    assert tied.info(HEAD).alias_of == EMBED and tied.info(EMBED).alias_of is None
    assert tie_embedding(source, tied=False) is source


def test_a_head_that_the_model_holds_apart_is_its_own(source: SafetensorsSource) -> None:
    tied = tie_embedding(source, tied=True)
    assert without_false_ties(tied, [EMBED, NORM]) is tied
    assert without_false_ties(tied, [HEAD, NORM]) is tied, "the head's name came first"
    apart = without_false_ties(tied, ["decoder.embed_tokens.weight", NORM, HEAD])
    np.testing.assert_array_equal(apart.read(HEAD), np.zeros((8, 4), np.float32))
