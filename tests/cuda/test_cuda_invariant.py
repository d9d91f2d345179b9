"""What ``--batch-invariant`` compiles to: one way to sum for every number of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sglk import driver
from sglk.errors import SglkError
from sglk.targets.artifact import Artifact
from sglk.targets.cuda import backend as cuda_backend
from sglk.targets.cuda import facts
from sglk.targets.cuda.facts import chips_named, cuda_target
from sglk.targets.cuda.rows_invariant import attention_tiles, product_tile

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
SUMS = ("gemv.", "split_k.", "matmul", "attention")
"""Parts of the names of kernels whose sums go over more than a row."""


def compiled_kernels(folder: Path, build: Any, **options: Any) -> list[dict[str, Any]]:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_backend, "build_libraries", build)
        patch.setattr(facts, "TOKEN_BUCKETS", (1, 16, 128))
        path = folder / "model.sglk"
        driver.compile(
            folder / "config.json", target="cuda:sm90", output=path, weights="dummy", **options
        )
    with Artifact.open(path) as artifact:
        model = artifact.manifest["model"]
        assert isinstance(model, dict)
        assert model["batch_invariant"] == options.get("batch_invariant", False)
        kernels: list[dict[str, Any]] = json.loads(artifact.read("kernels.json"))
    return [k for k in kernels if any(name in k["source"] for name in SUMS)]


def test_every_number_of_rows_has_the_same_order_of_sums(tmp_path: Path, without_code: Any) -> None:
    kernels = compiled_kernels(tmp_path, without_code, batch_invariant=True)
    products = [k for k in kernels if "attention" not in k["source"]]
    assert {k["source"] for k in products} == {"split_k.linear"}
    for kernel in products:
        constants = kernel["constants"]
        assert (constants["STREAM"], constants["SWAP"], constants["BLOCK_K"]) == (0, 1, 64)
    (attention,) = (k for k in kernels if "attention" in k["source"])
    assert attention["constants"]["MIN_QUERIES"] == 1


def test_without_it_few_and_many_rows_go_other_ways(tmp_path: Path, without_code: Any) -> None:
    sources = {kernel["source"] for kernel in compiled_kernels(tmp_path, without_code)}
    assert "gemv.linear" in sources and "decode_attention.decode_attention" in sources


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 2048, None])
def test_tiles_hold_their_rows(rows: int | None) -> None:
    target = cuda_target(chips_named(["sm90"]), batch_invariant=True)
    tile, how = product_tile(target, rows, 4096)
    assert tile["BLOCK_M"] in (16, 32, 64, 128) and how["num_warps"] in (4, 8)
    assert tile["GROUP_M"] or (rows is not None and rows <= tile["BLOCK_M"])
    assert tile["PROGRAMS"] <= 3 * target.programs
    tiles = attention_tiles(rows or 5000, 1, 4)
    assert isinstance(tiles, int) and tiles * 64 >= (rows or 5000) * 4


def test_rounding_by_the_number_of_rows_does_not_go_with_it() -> None:
    with pytest.raises(SglkError, match="--batch-invariant: expected no --round-weights"):
        driver.Options(activations="bf16", round_weights=True, batch_invariant=True)
