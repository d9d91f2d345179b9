"""A model compiled for Kunlun, proved on the emulator with the vendor's known errors built in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import sglk
from sglk import knobs
from sglk.errors import LoweringError
from sglk.ir.dtype import BF16, F16, F32
from sglk.targets.artifact import Artifact
from sglk.targets.artifact.kernel_pack import read_pack
from sglk.targets.kunlun.packing import SMALL, pack_weight


@pytest.fixture(scope="module")
def artifact(tiny_llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fp16 with every hazard: the self-test at the end of the compile compares with f32 math."""
    path = tmp_path_factory.mktemp("kunlun") / "tiny.sglk"
    with knobs.override(verify=False, kunlun_hazards="all"):
        compiled = sglk.compile(tiny_llama_folder, target="kunlun", output=path, dtype="fp16")
    assert compiled.report["selftest"][0].startswith("5 passed")
    return path


def test_the_artifact_carries_what_runs_and_what_finishes_it(artifact: Path) -> None:
    with Artifact.open(artifact) as opened:
        assert "emulator/libxpurt_emulator.so" in opened.names
        target = cast(dict[str, Any], opened.manifest["target"])
        assert (target["name"], target["page_size"]) == ("kunlun", 128)
        (variant,) = target["variants"]
        pack = read_pack(opened.view(variant["library"]))
        assert set(pack) == set(variant["symbols"])
        assert all("other" in cast(list[str], kernel.meta["hazards"]) for kernel in pack.values())
        source = json.loads(opened.read("kernels/xpu3.source.json"))
        (state,) = opened.program("step").states
    assert source["kernels"].keys() == pack.keys()
    for kernel in source["kernels"].values():
        module, _, name = kernel["function"].partition(".")
        assert f"def {name}(" in source["modules"][module]
        assert kernel["options"]["is_sdnn"] == ("tt.dot" in kernel["ttir"])
    assert state.shape[1] == "2"
    assert state.dtype == "f16"


def test_chunks_and_batches_change_no_token(artifact: Path) -> None:
    prompts = [[65 + i % 7 for i in range(n)] for n in (3, 40, 130)]
    with sglk.load(artifact, device="emulator") as llm:
        together = llm.generate(prompts, max_tokens=4, ignore_eos=True)
        alone = [llm.generate([p], max_tokens=4, ignore_eos=True)[0] for p in prompts]
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]


def test_it_needs_no_other_chip(artifact: Path) -> None:
    """The compiler's side and the device, in a process where no other chip can be imported."""
    code = (
        "import sys\n"
        "for name in ('cpu', 'cuda'): sys.modules['sglk.targets.' + name] = None\n"
        "import sglk\n"
        "from sglk.targets.backend import open_backend\n"
        "open_backend('kunlun')\n"
        "with sglk.load(sys.argv[1], device='emulator') as llm:\n"
        "    print(llm.generate([[65, 66]], max_tokens=2, ignore_eos=True)[0].token_ids)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(artifact)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert len(json.loads(run.stdout)) == 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"activations": "bf16"}, "--activations: expected f32 on Kunlun, got bf16"),
        ({"target": "kunlun:xpu9"}, "architectures among xpu3, xpu2, got 'xpu9'"),
        ({"target": "kunlun:xpu2,xpu3"}, "expected one architecture, got xpu2, xpu3"),
    ],
)
def test_choices_that_the_chip_does_not_have(
    tiny_llama_folder: Path, tmp_path: Path, options: dict[str, str], why: str
) -> None:
    target = options.pop("target", "kunlun")
    with pytest.raises(LoweringError, match=why):
        sglk.compile(tiny_llama_folder, target=target, output=tmp_path / "x.sglk", **options)
    assert not list(tmp_path.iterdir())


def test_small_weights_have_room_behind_them() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for dtype, size in ((F32, 4), (F16, 2), (BF16, 2)):
        packed = pack_weight("w", array, dtype, "row")
        assert packed.sections == {"w": (0, 6 * size)}
        assert packed.data.size == 6 * size + 256
    big = np.zeros(SMALL // 4 + 1, np.float32)
    assert pack_weight("w", big, F32, "row").data.size == big.nbytes
    narrow = pack_weight("w", array, F32, "row16")
    assert narrow.data.size == 16 * 3 * 4 + 256
    assert not narrow.data[2 * 3 * 4 :].any()
    with pytest.raises(LoweringError, match="weight w: no layout 'n64' for f32 on Kunlun"):
        pack_weight("w", array, F32, "n64")
