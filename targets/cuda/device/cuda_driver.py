"""`Driver` over cuda-bindings, which loads libcuda and nothing else: no toolkit, no compiler."""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from ....errors import DeviceError
from .driver import Chip, Grid, Handle, Pinned
from .error_text import describe

STATIC_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory that a kernel may use without being allowed more."""
_PACKAGE = "cuda.bindings.driver"
_thread = threading.local()
"""Which driver's context the calling thread is in."""
Launch = tuple[Callable[..., tuple[object, ...]], tuple[object, ...]]
"""A call of the driver and its arguments."""


def load_bindings() -> Any:
    """The module cuda.bindings.driver, or a sentence about what to install."""
    try:
        return importlib.import_module(_PACKAGE)
    except ImportError as error:
        raise DeviceError(
            f"cuda: expected the package cuda-bindings, got {error} (pip install sglk[cuda])"
        ) from error


def capability_here() -> tuple[int, int] | None:
    """Compute capability of the first GPU that this process may use; None where there is none."""
    try:
        driver = CudaDriver(0)
    except DeviceError:
        return None
    driver.close()
    return driver.chip.capability


class CudaDriver:
    """Implements `Driver` on one GPU (or MIG slice) of those that CUDA_VISIBLE_DEVICES shows."""

    def __init__(self, index: int = 0) -> None:
        self.where = f"cuda:{index}"
        self._api = load_bindings()
        self._modules: list[Handle] = []
        self._device = self._open(index)
        # The primary context: other libraries in the process share it, and MIG needs no more.
        self._context = self._do("open a context", self._api.cuDevicePrimaryCtxRetain, self._device)
        self._is_open = True
        self.use()
        self.chip = self._read_chip()

    def _open(self, index: int) -> Any:
        api = self._api
        try:
            self._do("start the driver", api.cuInit, 0)
        except RuntimeError as error:  # what cuda-bindings raises when there is no libcuda
            raise DeviceError(
                f"{self.where}: expected an NVIDIA driver, got {error} (install the driver;"
                " in a container pass the GPU through)"
            ) from error
        count = self._do("count devices", api.cuDeviceGetCount)
        if not 0 <= index < count:
            raise DeviceError(
                f"{self.where}: expected a device number below {count}, got {index}"
                " (check nvidia-smi and CUDA_VISIBLE_DEVICES)"
            )
        return self._do("open the device", api.cuDeviceGet, index)

    def _read_chip(self) -> Chip:
        api, kinds = self._api, self._api.CUdevice_attribute
        name = self._do("read its name", api.cuDeviceGetName, 128, self._device)
        major, minor, shared, processors = (
            self._do("read its attributes", api.cuDeviceGetAttribute, kind, self._device)
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        version = self._do("read its version", api.cuDriverGetVersion)
        return Chip(
            name=name.split(b"\0")[0].decode(),
            capability=(major, minor),
            shared_bytes=shared,
            num_processors=processors,
            driver_version=version,
        )

    def use(self) -> None:
        if getattr(_thread, "driver", None) is not self:
            self._check_open()
            self._do("enter its context", self._api.cuCtxSetCurrent, self._context)
            _thread.driver = self

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        _thread.driver = None
        for module in self._modules:
            self._api.cuModuleUnload(module)
        self._modules.clear()
        self._api.cuDevicePrimaryCtxRelease(self._device)

    def free_bytes(self) -> tuple[int, int]:
        free, total = self._do("ask for free memory", self._api.cuMemGetInfo)
        return int(free), int(total)

    def allocate(self, num_bytes: int, what: str) -> int:
        status, address = self._api.cuMemAlloc(max(1, num_bytes))
        if status:
            free, total = self.free_bytes()
            raise self._error(
                status,
                f"allocate {what}",
                f": {num_bytes / 2**30:.2f} GiB asked, {free / 2**30:.2f} of"
                f" {total / 2**30:.2f} GiB free",
            )
        return int(address)

    def free(self, address: int) -> None:
        if self._is_open:
            self._do("free memory", self._api.cuMemFree, address)

    def allocate_pinned(self, num_bytes: int, what: str) -> Pinned:
        size = max(1, num_bytes)
        flags = self._api.CU_MEMHOSTALLOC_PORTABLE
        address = int(self._do(f"pin memory for {what}", self._api.cuMemHostAlloc, size, flags))
        memory = (ctypes.c_uint8 * size).from_address(address)
        return Pinned(address, np.ctypeslib.as_array(memory))

    def free_pinned(self, pinned: Pinned) -> None:
        if self._is_open:
            self._do("free pinned memory", self._api.cuMemFreeHost, pinned.address)

    def copy_in(self, address: int, source: int, num_bytes: int, stream: Handle) -> None:
        (status,) = self._api.cuMemcpyHtoDAsync(address, source, num_bytes, stream)
        if status:
            raise self._error(status, f"copy {num_bytes} bytes to the device")

    def copy_out(self, target: int, address: int, num_bytes: int, stream: Handle) -> None:
        (status,) = self._api.cuMemcpyDtoHAsync(target, address, num_bytes, stream)
        if status:
            raise self._error(status, f"copy {num_bytes} bytes from the device")

    def set_bytes(self, address: int, value: int, num_bytes: int, stream: Handle) -> None:
        self._do("set memory", self._api.cuMemsetD8Async, address, value, num_bytes, stream)

    def load_module(self, code: bytes, what: str) -> Handle:
        # PTX is text that ends with a zero byte; after a cubin one more does not matter.
        module: Handle = self._do(f"load {what}", self._api.cuModuleLoadData, code + b"\0")
        self._modules.append(module)
        return module

    def function(self, module: Handle, entry: str, shared_bytes: int) -> Handle:
        api = self._api
        if shared_bytes > self.chip.shared_bytes:
            raise DeviceError(
                f"{self.where}: kernel {entry}: expected at most {self.chip.shared_bytes} bytes of"
                f" shared memory, got {shared_bytes} (compile the model for {self.chip.arch})"
            )
        function = self._do(f"find {entry}", api.cuModuleGetFunction, module, entry.encode())
        if shared_bytes > STATIC_SHARED_BYTES:
            kinds = api.CUfunction_attribute
            limit = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            what = f"give {entry} {shared_bytes} bytes of shared memory"
            self._do(what, api.cuFuncSetAttribute, function, limit, shared_bytes)
        found: Handle = function
        return found

    def prepare(
        self, function: Handle, grid: Grid, arguments: int, num_arguments: int, stream: Handle
    ) -> Handle:
        api = self._api
        if grid.num_ctas == 1 and not grid.is_dependent:
            shape = (grid.x, grid.y, grid.z, grid.num_threads, 1, 1)
            call = (function, *shape, grid.shared_bytes, stream, arguments, 0)
            return api.cuLaunchKernel, call
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY = grid.x * grid.num_ctas, grid.y
        config.gridDimZ, config.blockDimX = grid.z, grid.num_threads
        config.blockDimY = config.blockDimZ = 1
        config.sharedMemBytes, config.hStream = grid.shared_bytes, stream
        config.attrs = attributes = list(self._attributes(grid))
        config.numAttrs = len(attributes)
        return api.cuLaunchKernelEx, (config, function, arguments, 0)

    def _attributes(self, grid: Grid) -> Any:
        api = self._api
        if grid.num_ctas > 1:
            cluster = api.CUlaunchAttribute()
            cluster.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster.value.clusterDim.x = grid.num_ctas
            cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
            yield cluster
        if grid.is_dependent:
            early = api.CUlaunchAttribute()
            ids = api.CUlaunchAttributeID
            early.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            early.value.programmaticStreamSerializationAllowed = 1
            yield early

    def launch(self, launches: Sequence[Handle]) -> None:
        calls = cast("Sequence[Launch]", launches)
        for number, (function, arguments) in enumerate(calls):
            (status,) = function(*arguments)
            if status:
                raise self._error(status, f"launch kernel {number} of {len(launches)}")

    def make_stream(self) -> Handle:
        flags = self._api.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream: Handle = self._do("make a stream", self._api.cuStreamCreate, flags)
        return stream

    def free_stream(self, stream: Handle) -> None:
        if self._is_open:
            self._do("free a stream", self._api.cuStreamDestroy, stream)

    def synchronize(self, stream: Handle) -> None:
        self._do("wait for the device", self._api.cuStreamSynchronize, stream)

    def make_event(self, has_time: bool = False) -> Handle:
        kinds = self._api.CUevent_flags
        flags = kinds.CU_EVENT_DEFAULT if has_time else kinds.CU_EVENT_DISABLE_TIMING
        event: Handle = self._do("make an event", self._api.cuEventCreate, flags)
        return event

    def free_event(self, event: Handle) -> None:
        if self._is_open:
            self._do("free an event", self._api.cuEventDestroy, event)

    def record(self, event: Handle, stream: Handle) -> None:
        (status,) = self._api.cuEventRecord(event, stream)
        if status:
            raise self._error(status, "mark a place in the work")

    def wait(self, event: Handle) -> None:
        (status,) = self._api.cuEventSynchronize(event)
        if status:
            raise self._error(status, "wait for the device")

    def milliseconds(self, start: Handle, end: Handle) -> float:
        self.wait(end)
        return float(self._do("read the time", self._api.cuEventElapsedTime, start, end))

    def begin_capture(self, stream: Handle) -> None:
        # Thread-local: other threads may allocate and copy meanwhile.
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._do("begin a capture", self._api.cuStreamBeginCapture, stream, mode)

    def end_capture(self, stream: Handle) -> Handle:
        api = self._api
        noted = self._do("end a capture", api.cuStreamEndCapture, stream)
        try:
            graph: Handle = self._do("make a graph", api.cuGraphInstantiate, noted, 0)
            return graph
        finally:
            api.cuGraphDestroy(noted)

    def abandon_capture(self, stream: Handle) -> None:
        status, noted = self._api.cuStreamEndCapture(stream)
        if not status:
            self._api.cuGraphDestroy(noted)

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        (status,) = self._api.cuGraphLaunch(graph, stream)
        if status:
            raise self._error(status, "launch a graph")

    def free_graph(self, graph: Handle) -> None:
        if self._is_open:
            self._do("free a graph", self._api.cuGraphExecDestroy, graph)

    def _check_open(self) -> None:
        if not self._is_open:
            raise DeviceError(f"{self.where}: it is closed (open the device again)")

    def _do(self, what: str, function: Callable[..., Any], *arguments: object) -> Any:
        """Call the driver; what it returns beside the status."""
        status, *found = function(*arguments)
        if status:
            raise self._error(status, what)
        return found[0] if len(found) == 1 else tuple(found)

    def _error(self, status: Any, what: str, extra: str = "") -> DeviceError:
        text = self._api.cuGetErrorString(status)[1]
        shown = text.decode() if isinstance(text, bytes) else str(status)
        return DeviceError(describe(self.where, what, status.name, shown, extra))
