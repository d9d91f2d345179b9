"""Ops without a kernel run on the host: the same answers, in plain sight, refused by ``strict``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sglk
import torch
from sglk import knobs
from sglk.cli import main
from sglk.errors import ArtifactError, DeviceError, PassError
from sglk.ir.dim import dim
from sglk.ir.dtype import BF16, F32, I32
from sglk.ir.graph import Graph
from sglk.ir.ops.elementwise import Add, Cast
from sglk.ir.ops.order import CumSum
from sglk.ir.ops.shape import Broadcast, Reshape
from sglk.ir.ops.sparse import Embedding
from sglk.ir.types import TensorType
from sglk.targets.artifact.host_ops import HostOps
from sglk.targets.backend import open_backend
from sglk.targets.conformance.chip import Chip
from sglk.targets.cpu import compile as cpu_compile
from sglk.targets.host_calls import host_graph, symbols_in
from sglk.targets.kunlun import compile as kunlun_compile
from sglk.targets.registry import open_device

N = dim("n")
DEVICES = {"cpu": "cpu", "kunlun": "emulator"}


@pytest.fixture(params=DEVICES)
def chip(request: pytest.FixtureRequest, tmp_path: Path) -> Chip:
    name = request.param
    return Chip(open_backend(name), open_device(DEVICES[name]), tmp_path)


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tables that have lost some rows."""
    lost = {cpu_compile: {"cumsum", "embedding", "broadcast"}, kunlun_compile: {"cumsum"}}
    for module, ops in lost.items():
        rows = tuple(row for row in module.TABLE if row.op not in ops)
        monkeypatch.setattr(module, "TABLE", rows)
    yield


@pytest.mark.usefixtures("few_rows")
def test_host_ops_take_and_give_every_kind_of_operand(chip: Chip) -> None:
    """A weight, a computed bf16 value, a symbol in an attribute, between kernels of the chip."""
    graph = Graph("mixed")
    x = graph.input("x", TensorType(F32, (N, 64)))
    w = graph.param("w", TensorType(F32, (64,)))
    half = graph.emit(Cast(BF16), graph.emit(Add(), x, w))
    summed = graph.emit(Cast(F32), graph.emit(CumSum(), half))
    row = graph.emit(Reshape((1, 64)), graph.emit(CumSum(), graph.emit(Add(), w, w)))
    wide = graph.emit(Broadcast((N, 64)), graph.emit(Add(), row, row))
    graph.outputs = [graph.emit(Add(), summed, wide)]
    rng = np.random.default_rng(3)
    weights = {"w": rng.integers(-8, 8, 64).astype(np.float32)}
    artifact = chip.compile(graph, weights)
    with artifact, chip.loaded(artifact) as executable:
        for n in (1, 3, 70):
            a = rng.integers(-4, 4, (n, 64)).astype(np.float32)
            (got,) = executable.run("forward", {"x": a}).values()
            wanted = np.cumsum(a + weights["w"], 1) + 4 * np.cumsum(weights["w"])
            np.testing.assert_allclose(got, wanted, rtol=2**-7)
        counts = getattr(executable, "host_counts")  # noqa: B009
        assert counts["cumsum"].calls == 3 and counts["cumsum"].seconds > 0
        assert all(call.kernel.startswith("host.") == (call.op in counts)
                   for call in artifact.program("forward").buckets[0].calls)  # fmt: skip


@pytest.mark.usefixtures("few_rows")
def test_a_host_op_that_fails_is_a_sentence_and_harms_nothing(tmp_path: Path) -> None:
    chip = Chip(open_backend("cpu"), open_device("cpu"), tmp_path)
    graph = Graph("gather")
    ids = graph.input("ids", TensorType(I32, (N,)))
    graph.outputs = [graph.emit(Embedding(), graph.param("w", TensorType(F32, (4, 16))), ids)]
    table = np.arange(64, dtype=np.float32).reshape(4, 16)
    artifact = chip.compile(graph, {"w": table})
    with artifact, chip.loaded(artifact) as executable:
        with pytest.raises(
            DeviceError, match=r"host: host\.embedding_\w+: embedding: expected indices in 0..3"
        ):
            executable.run("forward", {"ids": np.array([1, 9], np.int32)})
        (got,) = executable.run("forward", {"ids": np.array([3, 1], np.int32)}).values()
        np.testing.assert_array_equal(got, table[[3, 1]])


class Odd(torch.nn.Module):
    """Ops that Kunlun has no rows for."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.expm1(torch.relu(x)) * 0.5, torch.argmin(x, 1)


def test_it_is_visible_and_strict_refuses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = {"example_inputs": (torch.randn(5, 64),), "dims": {"x": {0: "batch"}}}
    options = {**example, "dtype": "fp32", "target": "kunlun"}
    path = tmp_path / "odd.sglk"
    with pytest.raises(PassError, match=r"no implementation for 2 op\(s\): argmin x1.*expm1 x1"):
        sglk.compile(Odd(), output=path, strict=True, **options)
    compiled = sglk.compile(Odd(), output=path, **options)
    assert compiled.report["host_ops"] == {"argmin": 1, "expm1": 1}
    assert main(["show", str(path), "--report"]) == 0
    assert "on the host  argmin x1, expm1 x1 (slow" in capsys.readouterr().out
    x = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    with sglk.load_forward(path, device="emulator") as model:
        sums, places = model(x)
        assert {op: calls for op, (calls, _) in model.host_ops().items()} == {
            "argmin": 1,
            "expm1": 1,
        }
    np.testing.assert_allclose(sums, np.expm1(np.maximum(x, 0)) * 0.5, rtol=1e-5)
    np.testing.assert_array_equal(places, x.argmin(1))


@pytest.mark.usefixtures("few_rows")
def test_a_decoder_with_host_ops_gives_the_same_ids(
    tiny_llama_folder: Path, tiny_artifact: Path, tmp_path: Path
) -> None:

    path = tmp_path / "host.sglk"
    with knobs.override(verify=False):
        compiled = sglk.compile(tiny_llama_folder, output=path, selftest=False)
    done = compiled.report["host_ops"]
    assert set(done) == {"embedding"}
    prompts = [[5, 6, 7], list(range(3, 43))]
    with sglk.load(path) as llm:
        answers = [a.token_ids for a in llm.generate(prompts, max_tokens=4, ignore_eos=True)]
        stats = llm.engine.stats()
    assert stats.host_ops["embedding"][0] == stats.num_steps
    with sglk.load(tiny_artifact) as llm:
        wanted = [a.token_ids for a in llm.generate(prompts, max_tokens=4, ignore_eos=True)]
    assert answers == wanted


def cumsum_record() -> dict[str, object]:
    graph = Graph("g")
    y = graph.emit(CumSum(), graph.input("x", TensorType(F32, (N, 4))))
    node = y.producer
    assert node is not None
    alone = host_graph(node)
    return {"graph": alone.as_text(), "sizes": symbols_in(alone)}


@pytest.mark.parametrize(
    ("symbol", "change", "sentence"),
    [
        ("host.c", {"graph": "graph g() {"}, "expected a line 'return"),
        ("host.c", {"graph": 3}, "expected a text"),
        ("host.c", {"extra": 1}, "unexpected key 'extra'"),
        ("plain", {}, "expected a graph of one op"),
    ],
)
def test_a_damaged_record_is_one_sentence(
    symbol: str, change: dict[str, object], sentence: str
) -> None:
    class Stub:
        path = "x.sglk"
        names = ("host_ops.json",)

        def read(self, name: str) -> bytes:
            return json.dumps({symbol: {**cumsum_record(), **change}}).encode()

    with pytest.raises(ArtifactError, match=sentence):
        HostOps.of(Stub())  # type: ignore[arg-type]
