"""An emulated device for tests: kernels of this folder compiled, loaded and run through ctypes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sglk.targets.artifact.kernel_pack import PackedKernel
from sglk.targets.kernels.ttir import to_ttir
from sglk.targets.kunlun.device.library import XreLibrary
from sglk.targets.kunlun.device.xpu import LoadedKernel, Xpu
from sglk.targets.kunlun.emulator import build_emulated, build_emulator_library
from sglk.targets.tilec import MemoryModel

KINDS = {
    np.dtype(np.float32): "fp32",
    np.dtype(np.float16): "fp16",
    np.dtype(np.uint16): "bf16",
    np.dtype(np.int32): "i32",
    np.dtype(np.uint8): "u8",
}
MODEL = MemoryModel(
    name="test",
    clusters=12,
    cores=64,
    engines=12,
    lm_bytes=8192,
    lm_stack_bytes=2048,
    lm_align=64,
    sm_bytes=262_080,
    uni_sram_bytes=1_605_632,
    uni_row_align=128,
    uni_buffers=2,
    buffer_bytes=512,
    param_bytes=512,
    rank_max=2,
    math_functions=4,
    rates=(("main_bytes", float(64 << 20)), ("l3_bytes", float(1 << 20)), ("launch_ns", 1000.0),
           ("gm_bytes_ns", 0.5), ("macs_ns", 0.01), ("model", 300.0)),
)  # fmt: skip


@pytest.fixture(scope="session")
def model() -> MemoryModel:
    return MODEL


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    path = Path(__file__).with_name("emulated_kernels.py")
    spec = importlib.util.spec_from_file_location("emulated_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["emulated_kernels"] = module  # Triton looks a kernel's globals up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def library_bytes() -> bytes:
    return build_emulator_library(MODEL)


@pytest.fixture(scope="session")
def compile_kernel() -> Callable[..., PackedKernel]:
    """`compile_kernel(fn, constants, kinds, hazards=(), model=MODEL)`; limits are not enforced."""
    made: dict[object, PackedKernel] = {}

    def compiled(
        fn: Any,
        constants: Mapping[str, object],
        kinds: Mapping[str, str],
        hazards: tuple[str, ...] = (),
        model: MemoryModel = MODEL,
    ) -> PackedKernel:
        key = (fn.__name__, tuple(constants.items()), tuple(kinds.items()), hazards, model)
        if key not in made:
            chip = model.with_hazards(*hazards) if hazards else model
            text = to_ttir(fn, kinds, constants)
            made[key] = build_emulated({fn.__name__: text}, chip, strict=False)[fn.__name__]
        return made[key]

    return compiled


class Bench:
    """A device, and kernels run on NumPy arrays, whose memory is exactly theirs."""

    def __init__(self, library: XreLibrary, compiled: Callable[..., PackedKernel]) -> None:
        self.library = library
        self.xpu = Xpu(library)
        self.compiled = compiled
        self.loaded: dict[int, LoadedKernel] = {}

    def load(self, packed: PackedKernel, name: str = "kernel") -> LoadedKernel:
        if id(packed) not in self.loaded:
            name = str(packed.meta["symbol"])
            self.loaded[id(packed)] = self.xpu.load_kernel(name, packed)
        return self.loaded[id(packed)]

    def put(self, array: np.ndarray[Any, Any]) -> int:
        address = self.xpu.allocate(array.nbytes)
        self.xpu.upload(address, array)
        return address

    def run(
        self,
        fn: Any,
        grid: tuple[int, int, int],
        constants: Mapping[str, object],
        hazards: tuple[str, ...] = (),
        **args: Any,
    ) -> PackedKernel:
        """Arrays go to the device and come back; the kernel that ran is returned."""
        kinds = {name: kind_of(value) for name, value in args.items()}
        packed = self.compiled(fn, constants, kinds, hazards)
        loaded = self.load(packed)
        arrays = {n: v for n, v in args.items() if isinstance(v, np.ndarray)}
        places = {name: self.put(array) for name, array in arrays.items()}
        self.xpu.launch(loaded, grid, [places.get(name, value) for name, value in args.items()])
        self.xpu.wait()
        for name, array in arrays.items():
            self.xpu.download(array, places[name])
            self.xpu.free(places[name])
        return packed


def kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"*{KINDS[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


@pytest.fixture
def library(library_bytes: bytes) -> Iterator[XreLibrary]:
    """A copy of the library of its own: no test sees another's device."""
    library = XreLibrary.from_bytes("emulator", library_bytes)
    yield library
    library.close()


@pytest.fixture
def bench(library: XreLibrary, compile_kernel: Callable[..., PackedKernel]) -> Iterator[Bench]:
    bench = Bench(library, compile_kernel)
    yield bench
    bench.xpu.close()
