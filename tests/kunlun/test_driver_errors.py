"""The ctypes driver against the emulated library: every failure is one sentence with a remedy."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sglk.errors import ArtifactError, DeviceError
from sglk.targets.artifact.kernel_pack import PackedKernel
from sglk.targets.kunlun.device.error_table import ERRORS, describe
from sglk.targets.kunlun.device.image import kernel_image
from sglk.targets.kunlun.device.library import XreLibrary
from sglk.targets.kunlun.device.xpu import Xpu, place_parameters

F32 = {"x": "*fp32", "y": "*fp32"}
SCALE = {**F32, "factor": "fp32"}
ONE = (1, 1, 1)


@pytest.fixture
def scale(kernels: ModuleType, compile_kernel: Callable[..., PackedKernel]) -> PackedKernel:
    return compile_kernel(kernels.scale, {"BLOCK": 64}, SCALE)


def handle(library: XreLibrary, create: str) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    library.call(create, ctypes.byref(made))
    return made


# ---- memory


def test_more_than_the_device_has_is_out_of_memory(bench: Any) -> None:
    with pytest.raises(DeviceError, match=r"NOMEM \(705\): expected at most \d+ free bytes.*fewer"):
        bench.xpu.allocate(65 << 20)
    held = bench.xpu.allocate(48 << 20)
    with pytest.raises(DeviceError, match="NOMEM"):
        bench.xpu.allocate(32 << 20)
    bench.xpu.free(held)
    bench.xpu.free(bench.xpu.allocate(48 << 20))


def test_other_kinds_of_memory_have_their_own_capacity(bench: Any) -> None:
    bench.xpu.free(bench.xpu.allocate(1 << 20, kind=1))
    with pytest.raises(DeviceError, match="NOMEM"):
        bench.xpu.allocate((1 << 20) + 1, kind=1)


def test_a_copy_after_free_is_refused(bench: Any) -> None:
    array = np.ones(100, np.float32)
    place = bench.put(array)
    bench.xpu.free(place)
    with pytest.raises(DeviceError, match="use after free: in the allocation of 400 bytes"):
        bench.xpu.download(array, place)
    with pytest.raises(DeviceError, match=r"free of 0x.*: expected the start of a live allocation"):
        bench.xpu.free(place)


def test_a_copy_past_the_end_is_refused(bench: Any) -> None:
    place = bench.xpu.allocate(400)
    with pytest.raises(DeviceError, match=r"4 bytes past the end .*limit dma_bounds"):
        bench.xpu.upload(place, np.ones(101, np.float32))


def test_host_memory_is_no_device_memory(bench: Any) -> None:
    array = np.ones(4, np.float32)
    with pytest.raises(DeviceError, match="host and device are mixed up"):
        bench.library.call("xpu_memcpy", array.ctypes.data, array.ctypes.data, 16, 1)


def test_a_kernel_that_uses_freed_memory_breaks_the_device(bench: Any, scale: PackedKernel) -> None:
    array = np.ones(64, np.float32)
    x, y = bench.put(array), bench.put(array)
    kernel = bench.load(scale)
    bench.xpu.free(x)
    bench.xpu.launch(kernel, ONE, [x, y, 2.0])
    with pytest.raises(DeviceError, match=r"DMAABORT \(809\).*load of 64xf32.*use after free"):
        bench.xpu.wait()
    with pytest.raises(DeviceError, match=r"ABNORMAL \(713\).*use after free"):
        bench.xpu.launch(kernel, ONE, [y, y, 2.0])


def test_memory_is_freed_after_what_was_queued(bench: Any, scale: PackedKernel) -> None:
    """Freeing acts synchronously: a kernel queued before still has its memory."""
    x, y = bench.put(np.ones(64, np.float32)), bench.xpu.allocate(256)
    bench.xpu.launch(bench.load(scale), ONE, [x, y, 2.0])
    bench.xpu.free(x)
    result = np.zeros(64, np.float32)
    bench.xpu.wait()
    bench.xpu.download(result, y)
    assert (result == 2).all()


# ---- streams and events


def test_a_kernel_runs_only_when_somebody_waits_for_its_stream(
    bench: Any, scale: PackedKernel
) -> None:
    """A copy waits for the default stream alone: without a wait it sees the old values."""
    x, y = bench.put(np.ones(64, np.float32)), bench.put(np.zeros(64, np.float32))
    bench.xpu.launch(bench.load(scale), ONE, [x, y, 2.0])
    result = np.zeros(64, np.float32)
    bench.xpu.download(result, y)
    assert (result == 0).all()
    bench.xpu.wait()
    bench.xpu.download(result, y)
    assert (result == 2).all()


def test_events_order_streams(bench: Any, scale: PackedKernel) -> None:
    library, kernel = bench.library, bench.load(scale)
    x, y, z = (bench.put(np.ones(64, np.float32)) for _ in range(3))
    other, event = handle(library, "xpu_stream_create"), handle(library, "xpu_event_create")
    bench.xpu.launch(kernel, ONE, [x, y, 3.0])
    library.call("xpu_event_record", event, bench.xpu.stream)
    library.call("xpu_stream_wait_event", other, event)
    bench.xpu._stream, own = other, bench.xpu._stream
    bench.xpu.launch(kernel, ONE, [y, z, 5.0])
    bench.xpu.wait()
    result = np.zeros(64, np.float32)
    bench.xpu.download(result, z)
    assert (result == 15).all()
    bench.xpu._stream = own
    library.call("xpu_event_wait", event)


def test_a_stream_of_another_device_is_refused(library_bytes: bytes) -> None:
    library = XreLibrary.from_bytes("emulator", library_bytes)
    library.call("xpuemu_configure", b"devices=2")
    first, second = Xpu(library, 0), Xpu(library, 1)
    second.activate()
    with pytest.raises(
        DeviceError,
        match=r"expected a stream of this thread's device 1, got one "
        r"of device 0 \(limit stream_device, documented\)",
    ):
        first.wait()
    first.activate()
    first.wait()
    first.close()
    second.activate()
    second.close()
    library.close()


def test_the_current_device_is_per_thread(library_bytes: bytes) -> None:
    library = XreLibrary.from_bytes("emulator", library_bytes)
    library.call("xpuemu_configure", b"devices=2")
    library.call("xpu_set_device", 1)
    seen = []

    def ask() -> None:
        device = ctypes.c_int()
        library.call("xpu_current_device", ctypes.byref(device))
        seen.append(device.value)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    ask()
    assert seen == [0, 1]
    library.close()


def test_an_event_is_not_reached_before_somebody_waits(bench: Any, scale: PackedKernel) -> None:
    library, event = bench.library, handle(bench.library, "xpu_event_create")
    query = library.function("xpu_event_query")
    x = bench.put(np.ones(64, np.float32))
    bench.xpu.launch(bench.load(scale), ONE, [x, x, 2.0])
    library.call("xpu_event_record", event, bench.xpu.stream)
    assert query(event) == 716
    library.call("xpu_event_wait", event)
    assert query(event) == 0
    library.call("xpu_event_destroy", event)
    assert query(event) == 717


def test_what_is_not_emulated_says_so(bench: Any) -> None:
    code = bench.library.function("xpu_kernel_debug_reset")()
    error = bench.library.error("xpu_kernel_debug_reset", code)
    assert "NOSUPPORT (712): debugging kernels is not emulated (update XRE)" in str(error)


def test_a_destroyed_stream_is_refused(bench: Any) -> None:
    stream = handle(bench.library, "xpu_stream_create")
    bench.library.call("xpu_stream_destroy", stream)
    with pytest.raises(DeviceError, match=r"USE_AFTER_CLOSE \(717\).*a stream|an open stream"):
        bench.library.call("xpu_wait", stream)


def test_there_are_at_most_256_streams(bench: Any) -> None:
    made = [handle(bench.library, "xpu_stream_create") for _ in range(255)]
    with pytest.raises(DeviceError, match=r"at most 256 streams \(limit streams, documented\)"):
        handle(bench.library, "xpu_stream_create")
    for stream in made:
        bench.library.call("xpu_stream_destroy", stream)


# ---- kernels and arguments


def test_other_bytes_are_no_kernel(bench: Any) -> None:
    meta = {"kind": "xpubin", "engine": 0, "kinds": "pp"}
    with pytest.raises(DeviceError, match=r"NOXPUFUNC \(708\).*expected an emulated kernel image"):
        bench.xpu.load_kernel("alien", PackedKernel(meta, b"\x7fELF" + bytes(100)))


def test_a_damaged_kernel_is_refused(bench: Any, scale: PackedKernel) -> None:
    data = bytearray(scale.data)
    data[len(data) // 2] ^= 1
    with pytest.raises(DeviceError, match="code that its digest does not fit"):
        bench.xpu.load_kernel("scale", PackedKernel(scale.meta, bytes(data)))
    image = kernel_image("scale", scale.meta, scale.data)[:-5]
    with pytest.raises(DeviceError, match="one that is cut off"):
        made = ctypes.byref(ctypes.c_void_p())
        bench.library.call("load_binary", b"scale", image, len(image), 0, 0, made)


def test_source_kernels_need_finishing() -> None:
    with pytest.raises(ArtifactError, match="sglk finish"):
        kernel_image("add", {"kind": "source"}, b"")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kinds": "pz"}, "kinds: expected letters of plifd, got 'pz'"),
        ({"kinds": None}, "kinds: expected letters"),
        ({"engine": "yes"}, "engine: expected a whole number, got 'yes'"),
        ({"printf_offset": []}, "printf_offset: expected a whole number"),
    ],
)
def test_a_malformed_description_is_one_sentence(
    bench: Any, scale: PackedKernel, change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ArtifactError, match=f"kernel k: {sentence}"):
        bench.xpu.load_kernel("k", PackedKernel({**scale.meta, **change}, scale.data))


def test_a_foreign_handle_is_no_kernel(bench: Any) -> None:
    bench.library.call("xpu_launch_config", 1, 64, None)
    with pytest.raises(DeviceError, match="expected a loaded kernel"):
        bench.library.call("xpu_launch_async", 0x1234)


def test_a_launch_needs_all_parameters_and_a_configuration(bench: Any, scale: PackedKernel) -> None:
    kernel, library = bench.load(scale), bench.library
    library.call("xpu_launch_argument_set", bytes(16), 16, 0)
    with pytest.raises(DeviceError, match="no xpu_launch_config before it"):
        library.call("xpu_launch_async", kernel.handle)
    library.call("xpu_launch_argument_set", bytes(16), 16, 0)
    library.call("xpu_launch_config", 1, 64, None)
    with pytest.raises(
        DeviceError, match=r"expected 32 bytes of parameters, got 16 \(limit param_b"
    ):
        library.call("xpu_launch_async", kernel.handle)


def test_parameters_lie_at_multiples_of_four_within_512_bytes(bench: Any) -> None:
    with pytest.raises(DeviceError, match=r"limit param_alignment, documented"):
        bench.library.call("xpu_launch_argument_set", bytes(4), 4, 2)
    with pytest.raises(DeviceError, match=r"at most 512 bytes in all \(limit param_bytes, doc"):
        bench.library.call("xpu_launch_argument_set", bytes(8), 8, 508)


def test_a_launch_is_bounded_by_clusters_and_cores(bench: Any) -> None:
    for clusters, cores in ((13, 64), (12, 65), (0, 64)):
        with pytest.raises(DeviceError, match=r"limit clusters, documented"):
            bench.library.call("xpu_launch_config", clusters, cores, None)


def test_kernels_with_products_run_on_engines(
    bench: Any, kernels: ModuleType, compile_kernel: Callable[..., PackedKernel]
) -> None:
    packed = compile_kernel(kernels.index_product, {"M": 16}, F32, ("int-to-float",))
    kernel = bench.load(packed)
    block = np.zeros(kernel.block_bytes, np.uint8)
    block[kernel.grid_offset :] = np.ones(3, np.int32).view(np.uint8)
    bench.library.call("xpu_launch_argument_set", block.tobytes(), len(block), 0)
    bench.library.call("xpu_launch_config", 1, 64, None)
    with pytest.raises(DeviceError, match=r"1 engines of 64 cores: expected at most 12 of 8 \(lim"):
        bench.library.call("xpu_launch_async", kernel.handle)


def test_an_empty_grid_is_refused(bench: Any, scale: PackedKernel) -> None:
    with pytest.raises(DeviceError, match="expected a grid of at least 1, got 0"):
        bench.xpu.launch(bench.load(scale), (0, 1, 1), [0, 0, 1.0])


def test_the_number_of_arguments_is_checked(bench: Any, scale: PackedKernel) -> None:
    with pytest.raises(ArtifactError, match="expected 3 arguments, got 2"):
        bench.xpu.launch(bench.load(scale), ONE, [0, 0])


class Row(ctypes.Structure):
    """`xpu_launch_param`."""

    _fields_ = (
        ("index", ctypes.c_int32), ("value", ctypes.c_void_p), ("bytes", ctypes.c_int32),
        ("numel", ctypes.c_int32), ("type", ctypes.c_int32),
    )  # fmt: skip


@pytest.mark.parametrize("size", [2, 4])
def test_the_triton_launcher_takes_floats_of_four_bytes(
    bench: Any, scale: PackedKernel, size: int
) -> None:
    x, y = bench.put(np.ones(64, np.float32)), bench.put(np.zeros(64, np.float32))
    values: list[Any] = [ctypes.c_uint64(x), ctypes.c_uint64(y), ctypes.c_float(4.0)]
    rows = (Row * 3)(
        *(
            Row(i, ctypes.addressof(v), n, 1, t)
            for i, (v, n, t) in enumerate(zip(values, (8, 8, size), (0, 0, 4), strict=True))
        )
    )
    launch = bench.library.function("xpuLaunchKernel")
    stream, kernel = ctypes.c_void_p(bench.xpu.stream), ctypes.c_void_p(bench.load(scale).handle)
    code = launch(b"scale", kernel, 1, 1, 1, 12, 64, stream, rows, 3, None)
    if size == 2:
        error = bench.library.error("xpuLaunchKernel", code)
        assert "parameter 2: expected 4 bytes, got 2 (limit float_scalars, documented)" in str(
            error
        )
        return
    result = np.zeros(64, np.float32)
    bench.xpu.wait()
    bench.xpu.download(result, y)
    assert code == 0 and (result == 4).all()


def test_parameters_are_placed_as_on_the_device() -> None:
    assert [p.offset for p in place_parameters("pifpil")] == [0, 8, 12, 16, 24, 32]


# ---- the device


def test_a_lost_device_says_so_until_the_end(bench: Any, scale: PackedKernel) -> None:
    x, y = bench.put(np.ones(64, np.float32)), bench.xpu.allocate(256)
    kernel = bench.load(scale)
    bench.library.call("xpuemu_lose_device", 0, 1)
    bench.xpu.launch(kernel, ONE, [x, y, 2.0])
    bench.xpu.launch(kernel, ONE, [x, y, 2.0])
    with pytest.raises(
        DeviceError, match=r"DEVRESET \(801\): the device was lost \(close the exec"
    ):
        bench.xpu.wait()
    with pytest.raises(DeviceError, match=r"ABNORMAL \(713\).*the device was lost"):
        bench.xpu.allocate(16)


def test_a_device_that_is_not_there(library_bytes: bytes) -> None:
    library = XreLibrary.from_bytes("emulator", library_bytes)
    with pytest.raises(DeviceError, match="expected a device below 1, got 3"):
        Xpu(library, 3)
    library.close()


def test_the_vendors_library_is_named_when_it_is_missing() -> None:
    with pytest.raises(DeviceError, match=r"libxpurt-missing.so.*--device emulator"):
        XreLibrary.vendor("libxpurt-missing.so")


def test_a_library_without_the_api_is_refused() -> None:
    with pytest.raises(DeviceError, match="expected the function xpu_device_count in it"):
        XreLibrary.vendor("libc.so.6")


def test_settings_come_from_the_environment(
    library_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLK_KUNLUN_EMULATOR", "main_bytes=4096")
    library = XreLibrary.from_bytes("emulator", library_bytes)
    xpu = Xpu(library)
    assert xpu.attribute("main_bytes") == 4096
    xpu.close()
    library.close()
    monkeypatch.setenv("SGLK_KUNLUN_EMULATOR", "no_such=1")
    library = XreLibrary.from_bytes("emulator", library_bytes)
    with pytest.raises(
        DeviceError, match=r"UNINIT \(702\): SGLK_KUNLUN_EMULATOR: expected name=val"
    ):
        Xpu(library)
    library.close()


def test_every_code_has_a_name_a_meaning_and_a_remedy() -> None:
    for code, row in ERRORS.items():
        assert row.code == code and row.name and row.meaning and row.remedy
    assert describe(799).name == "XRE_799"
