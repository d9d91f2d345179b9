"""The toy model on a null driver; compiling without kernels."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sglk.targets.artifact.kernel_pack import PackedKernel, write_pack
from sglk.targets.assemble import Library
from sglk.targets.cuda.device import CudaExecutable
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.kernel import Kernel

Load = Callable[..., CudaExecutable]


@pytest.fixture(scope="session")
def toy() -> Any:
    """The module toy_model.py."""
    path = Path(__file__).with_name("toy_model.py")
    spec = importlib.util.spec_from_file_location("cuda_toy_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def without_code() -> Callable[..., list[Library]]:
    """In place of `build_libraries`: packs that say what kernels take, without compiling them."""

    def build(
        kernels: Sequence[Kernel], chips: Sequence[Any], cache: object, progress: object
    ) -> list[Library]:
        packed = {
            kernel.symbol: PackedKernel(
                {
                    "entry": kernel.function,
                    "num_warps": dict(kernel.options)["num_warps"],
                    "params": [kind for _, kind in kernel.signature],
                },
                b"",
            )
            for kernel in kernels
        }
        return [Library(chip.isa, write_pack(packed), ".pack") for chip in chips]

    return build


@pytest.fixture
def driver(toy: Any) -> NullDriver:
    return NullDriver(kernels=dict(toy.KERNELS))


@pytest.fixture
def load(tmp_path: Path, toy: Any, driver: NullDriver) -> Iterator[Load]:
    """Loads the toy; arguments are those of `write_artifact`."""
    opened: list[CudaExecutable] = []

    def open_driver(index: int) -> NullDriver:
        driver.__post_init__()  # as if made in the thread that opens it
        return driver

    def load(num_pages: int = 64, max_tokens: int = 32, **parts: object) -> CudaExecutable:
        device = CudaDevice(open_driver=open_driver)
        with toy.write_artifact(tmp_path / f"toy{len(opened)}.sglk", **parts) as artifact:
            opened.append(device.load(artifact, num_pages=num_pages, max_tokens=max_tokens))
        return opened[-1]

    yield load
    for executable in opened:
        executable.close()
