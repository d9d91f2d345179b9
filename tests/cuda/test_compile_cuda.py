"""The compile side of CUDA: configs to programs, kernels to packs, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglk import driver
from sglk.errors import LoweringError
from sglk.targets.artifact import Artifact
from sglk.targets.artifact.kernel_pack import read_pack
from sglk.targets.cuda import backend as cuda_backend
from sglk.targets.cuda.build import build_libraries
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.cuda.facts import CHIPS, chips_named, cuda_target, weakest
from sglk.targets.device import StepBatch
from sglk.targets.kernel import Kernel
from sglk.targets.tilec import KernelCache

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES},
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True,
        **SIZES,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=CONFIGS)
def compiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, without_code: Any
) -> Path:
    """A tiny model with dummy weights, its kernels not compiled."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "config.json").write_text(json.dumps(CONFIGS[request.param]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_backend, "build_libraries", without_code)
        path = folder / "model.sglk"
        driver.compile(
            folder / "config.json", target="cuda:sm90,sm80", output=path, weights="dummy"
        )
    return path


def test_calls_fit_what_kernels_take(compiled: Path) -> None:
    with Artifact.open(compiled) as artifact:
        pack = read_pack(artifact.view("kernels/sm_90.pack"))
        for entry in artifact.entries:
            program = artifact.program(entry)
            buffers = {b.name: b for b in (*program.inputs, *program.outputs, *program.temps)}
            for call in (call for bucket in program.buckets for call in bucket.calls):
                params = pack[call.kernel].meta["params"]
                assert isinstance(params, list) and len(params) == len(call.args)
                for arg, param in zip(call.args, params, strict=True):
                    is_pointer = arg.kind in ("buffer", "weight", "state")
                    assert is_pointer == param.startswith("*"), call
                    if arg.kind == "buffer":
                        kinds = {"*fp32": "f32", "*bf16": "bf16", "*i32": "i32", "*fp64": "f64"}
                        assert buffers[arg.value].dtype == kinds[param], call


def test_dummy_weights_take_no_room_and_constants_stay(compiled: Path) -> None:
    assert compiled.stat().st_size < 2_000_000
    with Artifact.open(compiled) as artifact:
        filled = {name: artifact.fill(name) for name in artifact.weights}
        norms = [f for name, f in filled.items() if "norm" in name and "+" not in name]
        assert norms and all(f is not None and f.mean == 1.0 for f in norms)
        matrix = filled["model.embed_tokens.weight"]
        assert matrix is not None and matrix.mean == 0.0
        (inv_freq,) = (name for name, fill in filled.items() if fill is None)
        values = artifact.weight(inv_freq).view(np.float32)
        assert values[0] == 1.0 and np.all(np.diff(values) < 0)
        names = set(artifact.weights)
        assert ("lm_head.weight" in names) == ("llama" in str(compiled))  # the other is tied


@pytest.mark.parametrize(
    ("tokens", "seqs", "has_prompts"), [(1, 1, False), (6, 6, False), (40, 2, True)]
)
def test_a_step_runs_on_the_null_driver(
    compiled: Path, tokens: int, seqs: int, has_prompts: bool
) -> None:
    null = NullDriver(total_bytes=1 << 40)
    with Artifact.open(compiled) as artifact:
        executable = CudaDevice(0, lambda index: null).load(artifact, num_pages=9, max_tokens=64)
    each = tokens // seqs
    executable.step(
        StepBatch(
            token_ids=np.zeros(tokens, np.int32),
            positions=np.tile(np.arange(each, dtype=np.int32), seqs),
            slots=np.arange(64, 64 + tokens, dtype=np.int32),
            query_start=np.arange(0, tokens + 1, each, dtype=np.int32),
            seq_lens=np.full(seqs, each, np.int32),
            page_table=np.ones((seqs, 1), np.int32),
            logit_rows=np.arange(each - 1, tokens, each, dtype=np.int32),
        )
    )
    names = [record.what for record in null.of("launch")]
    is_fused = tokens == seqs > 1  # attention rotates and writes too
    assert ("rope_attention.rope_attention" in names) == is_fused
    assert ("decode_attention.decode_attention" in names) != is_fused
    assert ("flash_attention.flash_attention" in names) == has_prompts
    rope = [r.grid for r in null.of("launch") if r.what == "rope_pages.rope_write_kv"]
    assert bool(rope) != is_fused
    assert all(grid is not None and grid.x >= tokens for grid in rope)
    executable.close()


def test_kernels_become_packs_for_each_arch_once(tmp_path: Path) -> None:
    options = (("aligned", ("x",)), ("num_stages", 1), ("num_warps", 4))
    signature = (("x", "*bf16"), ("w", "*bf16"), ("y", "*bf16"), ("eps", "fp32"))
    constants = (("BLOCK", 64), ("HIDDEN", 64), ("OFFSET", 0.0), ("PDL", 0))
    kernel = Kernel("row_norm.rmsnorm", signature, constants, options)
    cache = KernelCache(tmp_path)
    steps: list[tuple[int, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        steps.append((done, total))

    chips = chips_named(["sm90", "sm80"])
    libraries = build_libraries([kernel, kernel], chips, cache, progress)
    assert [library.isa for library in libraries] == ["sm_90", "sm_80", "ptx_80"]
    assert steps[-1] == (2, 2)
    for library in libraries:
        pack = read_pack(library.data)
        assert set(pack) == {kernel.symbol}
        meta, code = pack[kernel.symbol].meta, bytes(pack[kernel.symbol].data)
        assert meta["params"] == ["*bf16", "*bf16", "*bf16", "fp32"]
        assert meta["entry"] == "rmsnorm" and meta["num_warps"] == 4
        assert library.resources[kernel.symbol]["spills"] == 0
        assert isinstance(meta["regs"], int) and 8 <= meta["regs"] <= 255
        is_ptx = meta["kind"] == "ptx"
        assert is_ptx == library.isa.startswith("ptx")
        assert (b".target sm_80" in code) if is_ptx else code.startswith(b"\x7fELF")
        assert str(Path(driver.__file__).parent).encode() not in code
    again = build_libraries([kernel], chips, cache, progress)
    assert steps[-1] == (0, 0)
    assert again[0].data == libraries[0].data


def test_a_kernel_that_does_not_compile_is_named(tmp_path: Path) -> None:
    kernel = Kernel("step_inputs.place_tokens", (("token_ids", "*i32"),), (), ())
    with pytest.raises(LoweringError, match=r"1 of 1 kernels .*step_inputs.place_tokens for sm_90"):
        build_libraries([kernel], chips_named(["sm90"]), KernelCache(tmp_path), lambda *_: None)
    assert not list(tmp_path.rglob("*.cuda"))


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("cuda:sm75", {}, "expected architectures among sm80, sm86, sm89, .*got 'sm75'"),
        ("cuda", {"activations": "f32"}, "expected --activations bf16, got f32"),
    ],
)
def test_what_cannot_be_compiled_is_refused_first(
    target: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoweringError, match=message):
        driver.compile("no such model", target=target, **options)


def test_several_chips_share_the_program_of_the_weakest() -> None:
    assert weakest(chips_named(["sm90", "sm80", "sm89"])).arch == "sm80"
    assert weakest(chips_named(["sm90", "sm89"])).arch == "sm89"
    target = cuda_target(chips_named(["sm90", "sm80"]))
    assert target.arch == "sm_80" and not target.features
    for chip in CHIPS.values():
        assert chip.shared_bytes.source and chip.dram.value > 5e11 and chip.bf16.value > 1e14
