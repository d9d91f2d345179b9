"""As many pages as fill a share of the memory that is free, unless the user says a size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglk.errors import DeviceError, SglkError
from sglk.runtime import load
from sglk.runtime.executor import LoadOptions
from sglk.targets.artifact import Artifact
from sglk.targets.cuda import device as cuda_device
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.device import FitsPages

SMALL = 32 << 10
"""Bytes of inputs, tokens and scratch, which nobody plans."""


@pytest.fixture
def driver(toy: Any) -> NullDriver:
    return NullDriver(kernels=dict(toy.KERNELS), total_bytes=1 << 20)


@pytest.fixture
def opened(driver: NullDriver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the devices whose driver was opened."""
    numbers: list[int] = []

    def open_driver(number: int) -> NullDriver:
        numbers.append(number)
        return driver

    def open_device(number: str = "") -> CudaDevice:
        return CudaDevice(int(number or 0), open_driver=open_driver)

    monkeypatch.setattr(cuda_device, "open_device", open_device)
    return numbers


@pytest.fixture
def artifact(toy: Any, tmp_path: Path) -> Iterator[Artifact]:
    with toy.write_artifact(tmp_path / "toy.sglk") as made:
        yield made


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_pages_fill_a_share_of_the_device(
    artifact: Artifact, driver: NullDriver, opened: list[int], share: float
) -> None:
    options = {"memory_share": share, "max_step_tokens": 24, "max_running": 6}
    with load(artifact.path, device="cuda:1", **options) as llm:
        executable: Any = llm.engine.executable
        taken = sum(executable.memory_bytes().values())
        assert opened == [1], "the driver of the question is that of the load"
        assert abs(taken - share * driver.total_bytes) < SMALL
    assert not driver.is_open


def test_a_size_outranks_the_share(toy: Any, artifact: Artifact, opened: list[int]) -> None:
    options = {"kv_memory": 4 * toy.PAGE * 20, "max_step_tokens": 24}
    with load(artifact.path, device="cuda:1", **options) as llm:
        assert llm.engine.executable.num_pages == 20


def test_no_room_is_said_in_numbers(artifact: Artifact, toy: Any) -> None:
    small = NullDriver(total_bytes=1 << 10)
    device = CudaDevice(open_driver=lambda _: small)
    assert isinstance(device, FitsPages)
    with pytest.raises(DeviceError, match=r"room for 2 pages .* got 90% of 1,024 free bytes"):
        device.pages_that_fit(artifact, share=0.9, max_tokens=24)
    assert not small.is_open


@pytest.mark.parametrize("share", [0, -0.5, 1.5])
def test_shares_are_checked(share: float) -> None:
    with pytest.raises(SglkError, match="memory_share: expected a share up to 1, got"):
        LoadOptions(memory_share=share)
