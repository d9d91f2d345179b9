"""A mixture of experts compiled for CUDA: which kernels run at which sizes, and that they fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglk import driver
from sglk.targets.artifact import Artifact
from sglk.targets.cuda import backend as cuda_backend
from sglk.targets.cuda import facts
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.cuda.facts import chips_named, cuda_target
from sglk.targets.cuda.rows_experts import most_tiles, tile_for
from sglk.targets.device import StepBatch

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "intermediate_size": 96, "norm_topk_prob": True, "vocab_size": 256,
    "max_position_embeddings": 512, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
EVERY = {"route_experts.route"}
FEW = EVERY | {"grouped_linear.few", "grouped_linear.few_combined"}
MANY = EVERY | {"route_experts.sort_pairs", "grouped_linear.linear", "grouped_linear.combine"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, without_code: Any) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_backend, "build_libraries", without_code)
        patch.setattr(facts, "TOKEN_BUCKETS", (1, 8, 64))
        path = folder / "model.sglk"
        driver.compile(folder / "config.json", target="cuda:sm90", output=path, weights="dummy")
    return path


def batch(tokens: int) -> StepBatch:
    ones = np.ones(tokens, np.int32)
    return StepBatch(
        token_ids=ones,
        positions=0 * ones,
        slots=64 * (1 + np.arange(tokens, dtype=np.int32)),
        query_start=np.arange(tokens + 1, dtype=np.int32),
        seq_lens=ones,
        page_table=(1 + np.arange(tokens, dtype=np.int32))[:, None],
        logit_rows=np.arange(tokens, dtype=np.int32),
    )


@pytest.mark.parametrize(("tokens", "wanted"), [(1, FEW), (7, MANY), (60, MANY)])
def test_few_tokens_skip_the_sort(compiled: Path, tokens: int, wanted: set[str]) -> None:
    null = NullDriver(total_bytes=1 << 40)
    with Artifact.open(compiled) as artifact:
        assert all(artifact.fill(n) for n in artifact.weights if "experts" in n)
        executable = CudaDevice(0, lambda index: null).load(artifact, num_pages=99, max_tokens=64)
    executable.step(batch(tokens))
    grids: dict[str, set[int]] = {}
    for record in null.of("launch"):
        if record.grid and record.what.partition(".")[0] in ("route_experts", "grouped_linear"):
            grids.setdefault(record.what, set()).add(record.grid.x)
    assert set(grids) == wanted
    padded = 1 << (tokens - 1).bit_length()
    assert grids["route_experts.route"] == {padded}
    most = min(2 * padded, 8 + 2 * padded // 16)  # the inner width and the hidden size are one tile
    assert grids.get("grouped_linear.linear", {most}) == {most}
    executable.close()


def test_tiles_hold_all_pairs() -> None:
    target = cuda_target(chips_named(["sm90"]))
    for tokens, block in ((8, 16), (64, 16), (65, 32), (1024, 64), (1025, 128), (None, 128)):
        assert tile_for(target, tokens).block_m == block
    rng = np.random.default_rng(1)
    for pairs in (1, 8, 100, 4096):
        counts = np.bincount(rng.integers(0, 32, pairs), minlength=32)
        assert (-(-counts // 16)).sum() <= most_tiles(pairs, 32, 16)
    assert tile_for(cuda_target(chips_named(["sm90"]), batch_invariant=True), 4096).swap == 1
    assert tile_for(cuda_target(chips_named(["sm89"])), None).block_m == 64  # less shared memory
