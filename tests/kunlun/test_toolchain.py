"""The vendor's compiler out of process: the protocol, every failure, and the finished artifact.

A stand-in takes the compiler's place; the worker itself runs with this environment's Triton, for
another chip.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sglk import knobs
from sglk.cli import main
from sglk.errors import ArtifactError, LoweringError
from sglk.targets.artifact import Artifact, ArtifactWriter
from sglk.targets.artifact.kernel_pack import PackedKernel, read_pack, write_pack
from sglk.targets.kunlun.build import module_sources
from sglk.targets.kunlun.device.image import kernel_image
from sglk.targets.kunlun.finish import finish, read_sources
from sglk.targets.kunlun.toolchain import Target, Toolchain, xpu_target

STAND_IN = Path(__file__).with_name("toolchain_stand_in.py")
KERNELS: dict[str, dict[str, Any]] = {
    "rmsnorm_1": {
        "function": "norm.rmsnorm",
        "signature": {"x": "*fp32", "w": "*fp32", "y": "*fp32", "eps": "fp32"},
        "constants": {"HIDDEN": 64, "OFFSET": 0.0, "BLOCK": 64},
        "options": {"is_sdnn": False},
        "ttir": "",
    },
    "tile_2": {
        "function": "linear.linear", "signature": {}, "constants": {}, "options": {"is_sdnn": True},
        "ttir": "",
    },
}  # fmt: skip
Run = Callable[..., tuple[int, str, str]]


def silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def stand_in(fault: str = "none", timeout: float = 20.0) -> Toolchain:
    return Toolchain([sys.executable, str(STAND_IN), fault], timeout=timeout)


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    return write_unfinished(tmp_path / "model.sglk")


def write_unfinished(path: Path, **changes: object) -> Path:
    """An artifact as the compiler leaves it, but for its programs; changes are of its sources."""
    meta = {"kind": "emulated", "kinds": "pppf", "param_bytes": 44, "engine": 0, "digest": "1"}
    pack = write_pack({symbol: PackedKernel(meta, b"emulated") for symbol in KERNELS})
    record = {
        "format": 1, "arch": "xpu3", "triton": "3.0 to 3.6", "modules": {"norm": ""},
        "kernels": KERNELS, **changes,
    }  # fmt: skip
    with ArtifactWriter(path) as writer:
        writer.add_bytes("kernels/xpu3.pack", pack)
        writer.add_bytes("kernels/xpu3.source.json", json.dumps(record).encode())
        blob = writer.add_blob([b"weights"])
        weight = {
            "blob": blob, "bytes": 7, "dtype": "u8", "shape": [7], "layout": "row",
            "sections": {"w": [0, 7]}, "sha256": blob.rpartition("/")[2],
        }  # fmt: skip
        variant = {"isa": "xpu3", "library": "kernels/xpu3.pack", "symbols": sorted(KERNELS)}
        writer.finish(
            {
                "format": [1, 0],
                "features": [],
                "producer": "test",
                "model": {"name": "toy", "architecture": "toy"},
                "target": {"name": "kunlun", "page_size": 128, "variants": [variant]},
                "programs": {},
                "weights": {"w": weight},
            }
        )
    return path


def test_a_finished_artifact_has_both_kinds_of_kernels(unfinished: Path, tmp_path: Path) -> None:
    output = tmp_path / "finished.sglk"
    with Artifact.open(unfinished) as artifact, stand_in() as chain:
        versions = finish(artifact, output, chain, silent)
    assert (versions.triton, versions.python) == ("3.0.0", "3.10.12")
    with Artifact.open(output) as artifact:
        artifact.verify_weights()
        assert bytes(artifact.weight("w")) == b"weights"
        target: Any = artifact.manifest["target"]
        members = [variant["library"] for variant in target["variants"]]
        assert members == ["kernels/xpu3.xpubin.pack", "kernels/xpu3.pack"]
        pack = read_pack(artifact.view(members[0]))
        stated = json.loads(artifact.read("kernels/xpu3.toolchain.json"))
        assert stated["flagtree"] == "0.3.1"
        meta = pack["tile_2"].meta
        assert meta["kind"] == "xpubin" and meta["engine"] == 1 and meta["printf_offset"] == 64
        assert meta["kinds"] == "pppf" and meta["param_bytes"] == 44
        image = kernel_image("rmsnorm_1", pack["rmsnorm_1"].meta, pack["rmsnorm_1"].data)
        assert image == b"binary of norm.rmsnorm"
        with (
            stand_in() as chain,
            pytest.raises(ArtifactError, match="expected an unfinished artifact"),
        ):
            finish(artifact, output, chain, silent)


FAULTS = [
    ("silent", r"hello: it ended with status 1"),
    ("old protocol", r"expected protocol 1, got 0"),
    ("newer triton", r"expected Triton 3\.0 to 3\.6, got '3\.9\.0'"),
    ("odd triton", r"expected Triton 3\.0 to 3\.6, got 'nightly'"),
    ("no xpu", r"expected a Triton with the back end xpu, got nvidia, amd"),
    ("crash", r"kernel rmsnorm_1: it was killed by signal 9\n  LLVM ERROR: cannot select"),
    ("exit", r"it ended with status 3\n  Traceback: no module xtdk"),
    ("garbage", r"expected a line of JSON, got b'warning: deprecated option\\n'"),
    ("a list", r"expected a line of JSON, got b'\[1, 2\]\\n'"),
    ("half", r"the answer stops after 100 bytes; it ended with status 0"),
    ("refused", r"kernel rmsnorm_1: OutOfResources: uni_sram 2"),
    ("another kernel", r"expected an answer 'compiled', got 'compiled' for 'other'"),
    ("no answer to it", r"expected an answer 'compiled', got 'ok' for 'rmsnorm_1'"),
    ("empty", r"expected a binary, got none"),
    ("no base64", r"expected base64"),
    ("cut short", r"expected 22 bytes of the stated hash, got 3"),
    ("wrong hash", r"expected 22 bytes of the stated hash, got 22"),
    ("no metadata", r"expected metadata, got None"),
]


@pytest.mark.parametrize(("fault", "sentence"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_toolchain_that_goes_wrong_is_one_sentence(
    unfinished: Path, tmp_path: Path, fault: str, sentence: str
) -> None:
    output = tmp_path / "finished.sglk"
    before = unfinished.read_bytes()
    with (
        Artifact.open(unfinished) as artifact,
        pytest.raises(LoweringError, match=sentence) as caught,
        stand_in(fault) as chain,
    ):
        finish(artifact, output, chain, silent)
    assert str(caught.value).startswith("kunlun toolchain: ")
    assert not output.exists() and unfinished.read_bytes() == before


def test_a_toolchain_that_hangs_is_ended(unfinished: Path, tmp_path: Path) -> None:
    with (
        Artifact.open(unfinished) as artifact,
        pytest.raises(LoweringError, match=r"kernel rmsnorm_1: no answer within 0\.5 s"),
        stand_in("hang", timeout=0.5) as chain,
    ):
        finish(artifact, tmp_path / "finished.sglk", chain, silent)
    assert chain._process is not None and chain._process.poll() is not None


def test_a_toolchain_that_does_not_read_is_ended() -> None:
    command = [sys.executable, str(STAND_IN), "deaf"]
    with (
        pytest.raises(LoweringError, match=r"modules: no answer within 0\.5 s"),
        Toolchain(command, start_timeout=0.5) as chain,
    ):
        chain.modules({"large": "x" * (1 << 20)})
    assert chain._process is not None and chain._process.poll() is not None


def test_a_python_that_is_not_there() -> None:
    with (
        pytest.raises(LoweringError, match=r"cannot start /no/such/python: No such file"),
        Toolchain.with_python("/no/such/python"),
    ):
        raise AssertionError("it started")


def test_an_arch_is_a_number() -> None:
    assert xpu_target("xpu2") == Target(2)
    with pytest.raises(LoweringError, match="expected an arch such as xpu3, got 'sm_90'"):
        xpu_target("sm_90")


@pytest.mark.slow
def test_the_worker_compiles_our_kernels_with_a_real_triton() -> None:
    """For a chip that this environment's Triton knows; the way to the vendor's is the same."""
    pytest.importorskip("triton")
    target = Target(arch=90, backend="cuda", warp_size=32, binary="cubin")
    kernel = {**KERNELS["rmsnorm_1"], "options": {"num_warps": 4}}
    with Toolchain.with_python(sys.executable) as chain:
        with pytest.raises(LoweringError, match="expected a Triton with the back end xpu"):
            chain.hello(Target(3))
        with pytest.raises(LoweringError, match="expected a Triton with the back end cuda"):
            chain.hello(target)
        chain.modules(module_sources())
        made = chain.compile("rmsnorm_1", kernel, target)
        assert made.data[:4] == b"\x7fELF"
        assert made.metadata["num_warps"] == 4
        missing = {**kernel, "function": "norm.nothing"}
        with pytest.raises(LoweringError, match="has no attribute 'nothing'"):
            chain.compile("nothing", missing, target)
        again = chain.compile("rmsnorm_1", kernel, target)
        assert again.data == made.data


# Command line ---------------------------------------------------------------------------------


@pytest.fixture
def run_finish(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str, str]:
        status = main(["finish", *map(str, arguments)])
        return (status, *capfd.readouterr())

    return run


def test_without_a_toolchain_it_says_what_remains(unfinished: Path, run_finish: Run) -> None:
    status, _, err = run_finish(unfinished)
    assert status == 1
    assert "no toolchain is known here" in err
    assert "remaining: 2 kernels for xpu3, from Triton source to xpubin" in err
    assert "sglk finish ARTIFACT --python" in err
    status, out, _ = run_finish(unfinished, "--check")
    assert status == 1 and "remaining: 2 kernels" in out


def test_a_python_of_another_triton_is_refused(unfinished: Path, run_finish: Run) -> None:
    with knobs.override(kunlun_python=sys.executable):
        status, _, err = run_finish(unfinished, "--check")
    assert status == 1 and "expected a Triton with the back end xpu" in err


def test_it_finishes_in_place(
    unfinished: Path, run_finish: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglk.targets.kunlun.toolchain.WORKER", STAND_IN)
    status, out, err = run_finish(unfinished, "--python", sys.executable)
    assert status == 0, err
    assert "2 kernels for xpu3 by Triton 3.0.0, FlagTree 0.3.1, Python 3.10.12" in out
    with Artifact.open(unfinished) as artifact:
        assert "kernels/xpu3.xpubin.pack" in artifact.names


def test_an_artifact_of_another_target_is_complete(tiny_artifact: Path, run_finish: Run) -> None:
    status, _, err = run_finish(tiny_artifact)
    assert status == 1 and "an artifact for cpu is complete as it is" in err


def test_sources_are_read_back_and_say_the_steps(unfinished: Path) -> None:
    with Artifact.open(unfinished) as artifact:
        sources = read_sources(artifact)
    assert set(sources.kernels) == set(KERNELS) and sources.arch == "xpu3"
    assert "FLAGTREE_BACKEND=xpu" in sources.steps[1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"modules": {"../../outside": ""}}, "expected names of modules, got '../../outside'"),
        (
            {"kernels": {**KERNELS, "unheard_of": KERNELS["tile_2"]}},
            "expected the kernel unheard_of among those of xpu3, got 2 others",
        ),
    ],
)
def test_sources_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    path = write_unfinished(tmp_path / "wrong.sglk", **changes)
    with (
        Artifact.open(path) as artifact,
        stand_in() as chain,
        pytest.raises(ArtifactError, match=sentence),
    ):
        finish(artifact, tmp_path / "finished.sglk", chain, silent)
    assert not (tmp_path / "finished.sglk").exists()
