"""Which device, which variant, and what is said when there is none."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglk.errors import ArtifactError, DeviceError
from sglk.runtime.executor import LoadOptions, open_executable
from sglk.targets.cuda.device import CudaDevice, CudaExecutable, cuda_driver
from sglk.targets.cuda.device.arch import best_of
from sglk.targets.cuda.device.bound_program import BoundProgram, Launches
from sglk.targets.cuda.device.driver import Chip
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.registry import open_device

Load = Callable[..., CudaExecutable]


@pytest.mark.parametrize(
    ("isas", "capability", "best"),
    [
        (["sm_80", "sm_90"], (9, 0), "sm_90"),
        (["sm_80", "ptx_80"], (8, 6), "sm_80"),
        (["sm_80", "sm_86", "sm_89"], (8, 7), "sm_86"),
        (["sm_90", "ptx_80"], (10, 0), "ptx_80"),
        (["sm_90", "ptx_90"], (10, 0), None),
        (["sm_100", "sm_120"], (10, 3), None),
        (["sm_80", "ptx_80", "ptx_89"], (12, 0), "ptx_89"),
        (["sm_90"], (8, 0), None),
        (["sm_120"], (12, 0), "sm_120"),
        (["x86_64_v4"], (9, 0), None),
    ],
)
def test_the_best_variant_is_chosen(
    isas: list[str], capability: tuple[int, int], best: str | None
) -> None:
    assert best_of(isas, capability) == best


def test_a_chip_that_no_kernel_fits_is_refused_with_the_list(tmp_path: Path, toy: Any) -> None:
    driver = NullDriver(chip=Chip("Future", (13, 0), 1 << 18, 200, 14000))
    device = CudaDevice(open_driver=lambda _: driver)
    with (
        toy.write_artifact(tmp_path / "toy.sglk") as artifact,
        pytest.raises(
            ArtifactError,
            match=r"expected kernels for sm_130 \(Future\), got only \['sm_90'\] .*cuda:sm130",
        ),
    ):
        device.load(artifact, num_pages=4, max_tokens=4)
    assert not driver.is_open


def test_too_little_memory_is_one_sentence_and_leaves_nothing(tmp_path: Path, toy: Any) -> None:
    driver = NullDriver(total_bytes=100_000)
    device = CudaDevice(open_driver=lambda _: driver)
    with (
        toy.write_artifact(tmp_path / "toy.sglk") as artifact,
        pytest.raises(DeviceError, match=r"allocate state kv: out of memory \(take fewer pages"),
    ):
        device.load(artifact, num_pages=20_000, max_tokens=4)
    assert driver.allocated_bytes == 0 and not driver.is_open


def test_pages_have_their_size(tmp_path: Path, toy: Any) -> None:
    with toy.write_artifact(tmp_path / "toy.sglk") as artifact:
        assert CudaDevice().kv_bytes_per_page(artifact) == 4 * toy.PAGE


def test_devices_have_numbers() -> None:
    assert [open_device(name).name for name in ("cuda", "cuda:0", "cuda:3")] == [
        "cuda:0", "cuda:0", "cuda:3",
    ]  # fmt: skip
    with pytest.raises(DeviceError, match="expected a device number as in cuda:0, got 'one'"):
        open_device("cuda:one")
    with pytest.raises(DeviceError, match=r"expected one of \['cpu', .*\], got 'cpu:0'"):
        open_device("cpu:0")


def test_other_targets_are_refused(tmp_path: Path, toy: Any) -> None:
    with (
        toy.write_artifact(tmp_path / "toy.sglk", target="cpu") as artifact,
        pytest.raises(ArtifactError, match="for the target cuda, got one for cpu"),
    ):
        open_executable(artifact, "cuda:0", LoadOptions())


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_PACKAGE", "cuda_bindings_that_nobody_has")
    with pytest.raises(DeviceError, match=r"expected the package cuda-bindings.*sglk\[cuda\]"):
        cuda_driver.CudaDriver(0)


def test_the_device_loads_no_compiler_and_no_bindings_before_it_is_used() -> None:
    code = "import sys; from sglk.targets.registry import open_device; open_device('cuda:0')"
    run = [sys.executable, "-c", f"{code}; print(*sys.modules)"]
    loaded = set(subprocess.run(run, capture_output=True, text=True, check=True).stdout.split())
    assert not {"torch", "triton", "sympy", "cuda", "sglk.ir", "sglk.targets.lowering"} & loaded


def test_runs_entries_by_name(load: Load, toy: Any) -> None:
    executable = load()
    with pytest.raises(DeviceError, match=r"program sample: expected inputs \['logits', 'top_k', "):
        executable.run("sample", {})
    with pytest.raises(DeviceError, match=r"got 'argmax' \(it runs with steps\)"):
        executable.run("argmax", {})
    with pytest.raises(DeviceError, match="no program 'forward'"):
        executable.run("forward", {})


def test_arguments_live_until_a_named_entry_is_launched(
    load: Load, toy: Any, driver: NullDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Launches]] = []
    prepare, launch = BoundProgram.prepare, driver.launch

    def noted_prepare(*arguments: Any) -> Launches:
        launches = prepare(*arguments)
        made.append(weakref.ref(launches))
        return launches

    def checked_launch(launches: Any) -> None:
        assert made and made[-1]() is not None
        launch(launches)

    argmax = toy.argmax_program()
    logits_in = dataclasses.replace(argmax.inputs[0], shape=("rows", str(toy.VOCAB)))
    plain = dataclasses.replace(argmax, entry="plain", inputs=(logits_in, *argmax.inputs[1:]))
    unshaped = dataclasses.replace(argmax, entry="unshaped")
    executable = load(programs=[*toy.PROGRAMS, plain, unshaped])
    monkeypatch.setattr(BoundProgram, "prepare", noted_prepare)
    monkeypatch.setattr(driver, "launch", checked_launch)
    logits = np.eye(3, toy.VOCAB, dtype=np.float32)
    turn = np.array([0, 0, 0, 3, 3, 0, 0, 0], np.int32)
    inputs = {"logits": logits, "turn": turn, "landing": np.zeros(9, np.int32)}
    assert executable.run("plain", inputs)["ids"].tolist() == [0, 1, 2]
    with pytest.raises(DeviceError, match="no input's shape gives rows"):
        executable.run("unshaped", inputs | {"logits": logits.reshape(-1)})
    assert len(made) == 1
