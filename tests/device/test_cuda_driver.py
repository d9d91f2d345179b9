"""The real driver: copies, kernels, graphs, errors; and an executable whose model is one look-up.

The step's logits are the row of a table that the token names, so the tokens after a first one are
known; table, tokens and sampling come from the kernels that every artifact for CUDA carries.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk import knobs
from sglk.errors import DeviceError
from sglk.targets.artifact import (
    FORMAT,
    Arg,
    Artifact,
    ArtifactWriter,
    Bucket,
    Buffer,
    Call,
    Program,
)
from sglk.targets.artifact.fill import FEATURE, Fill, fill_array
from sglk.targets.artifact.kernel_pack import PackedKernel, read_pack, write_pack
from sglk.targets.cuda.device import CudaExecutable
from sglk.targets.cuda.device.cuda_driver import CudaDriver
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.cuda.device.driver import Grid
from sglk.targets.cuda.device.reader import Reader
from sglk.targets.cuda.entries import argmax, fill, place_tokens, sample
from sglk.targets.cuda.facts import chips_named, cuda_target
from sglk.targets.cuda.triton_worker import compile_kernel
from sglk.targets.device import SAMPLED_ROW, StepBatch

pytestmark = [pytest.mark.device, pytest.mark.xdist_group("cuda_driver")]
VOCAB, PAGE, BLOCK = 5000, 64, 1024
STATE_BYTES = 64
"""Of a page."""
FILL = Fill(seed=11, mean=0.0, step=2.0**-22)
FIELDS = {"token_ids": "tokens", "positions": "tokens", "slots": "tokens", "logit_rows": "rows"}


@pytest.fixture(autouse=True)
def quiet_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.9 wants it said whether products and sums may contract."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    path = Path(__file__).with_name("driver_kernels.py")
    spec = importlib.util.spec_from_file_location("driver_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def open_or_skip() -> CudaDriver:
    try:
        return CudaDriver(0)
    except DeviceError as error:
        pytest.skip(f"needs an NVIDIA GPU and cuda-bindings: {error}")


@pytest.fixture
def driver() -> Iterator[CudaDriver]:
    opened = open_or_skip()
    yield opened
    opened.close()


def compiled(
    driver: CudaDriver, function: Any, types: dict[str, str], constants: dict[str, object]
) -> PackedKernel:
    """A cubin for the GPU at hand."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = types | dict.fromkeys(constants, "constexpr")
    source = ASTSource(function, signature=signature, constexprs=constants)
    major, minor = driver.chip.capability
    made = triton.compile(source, target=GPUTarget("cuda", major * 10 + minor, 32))
    meta = {
        "entry": made.metadata.name, "num_warps": made.metadata.num_warps,
        "shared": made.metadata.shared, "params": list(types.values()),
    }  # fmt: skip
    return PackedKernel(meta, made.asm["cubin"])


def load_saxpy(driver: CudaDriver, kernels: ModuleType, waits: bool = False) -> Any:
    types = {"x": "*fp32", "y": "*fp32", "n": "i32", "a": "fp32"}
    packed = compiled(driver, kernels.saxpy, types, {"BLOCK": BLOCK, "PDL": waits})
    module = driver.load_module(bytes(packed.data), "saxpy")
    return driver.function(module, str(packed.meta["entry"]), 0)


def arguments(*words: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    values = np.array([*words, 0, 0], np.int64)
    return values, (values.ctypes.data + 8 * np.arange(len(values))).astype(np.uint64)


def test_a_graph_does_what_launches_do(driver: CudaDriver, kernels: ModuleType) -> None:
    stream, count = driver.make_stream(), 100_000
    reader = Reader(driver, stream)
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(count).astype(np.float32) for _ in range(2))
    at = [driver.allocate(4 * count, name) for name in "xy"]
    for address, array in zip(at, (x, y), strict=True):
        reader.write(address, array.view(np.uint8))
    words, pointers = arguments(*at, count, int(np.float32(2).view(np.int32)))
    grid = Grid(-(-count // BLOCK), 1, 1, 128)
    function = load_saxpy(driver, kernels)
    launch = driver.prepare(function, grid, int(pointers.ctypes.data), len(words), stream)
    driver.launch([launch])
    once = reader.read(at[1], 4 * count).view(np.float32)
    np.testing.assert_allclose(once, 2 * x + y, rtol=1e-6, atol=1e-6)
    driver.begin_capture(stream)
    driver.launch([launch, launch])
    graph = driver.end_capture(stream)
    reader.write(at[1], y.view(np.uint8))
    start, end = driver.make_event(has_time=True), driver.make_event(has_time=True)
    driver.record(start, stream)
    driver.launch_graph(graph, stream)
    driver.record(end, stream)
    twice = reader.read(at[1], 4 * count).view(np.float32)
    driver.launch([launch])
    assert 0 < driver.milliseconds(start, end) < 1000
    np.testing.assert_allclose(twice, 4 * x + y, rtol=1e-6, atol=1e-6)
    assert not np.array_equal(reader.read(at[1], 4 * count).view(np.float32), twice)


def test_dependent_launches_wait_for_each_other(driver: CudaDriver, kernels: ModuleType) -> None:
    """Kernels that start early and wait themselves, in a graph and after it."""
    if driver.chip.capability < (9, 0):
        pytest.skip("needs programmatic dependent launch: compute capability 9.0")
    stream = driver.make_stream()
    reader = Reader(driver, stream)
    at = [driver.allocate(4 * BLOCK, name) for name in "xy"]
    reader.write(at[0], np.ones(BLOCK, np.float32).view(np.uint8))
    reader.write(at[1], np.zeros(BLOCK, np.float32).view(np.uint8))
    words, pointers = arguments(*at, BLOCK, int(np.float32(1).view(np.int32)))
    function = load_saxpy(driver, kernels, waits=True)
    grid = Grid(1, 1, 1, 128, is_dependent=True)
    launch = driver.prepare(function, grid, int(pointers.ctypes.data), len(words), stream)
    driver.begin_capture(stream)
    driver.launch([launch] * 50)
    graph = driver.end_capture(stream)
    driver.launch_graph(graph, stream)
    driver.launch([launch] * 50)
    assert set(reader.read(at[1], 4 * BLOCK).view(np.float32)) == {100}


def test_errors_say_what_to_do(driver: CudaDriver) -> None:
    free, total = driver.free_bytes()
    assert 0 < free <= total
    with pytest.raises(DeviceError, match=r"allocate pages: .*GiB free \(take fewer pages"):
        driver.allocate(total + (1 << 30), "pages")
    with pytest.raises(DeviceError, match=r"load junk: .*\(.*compile the model"):
        driver.load_module(b"\x7fELF no cubin", "junk")
    with pytest.raises(DeviceError, match=r"wait for the device: .*\((it is closed|an argument)"):
        driver.wait(0)
    with pytest.raises(DeviceError, match="expected a device number below"):
        CudaDriver(4096)
    with pytest.raises(DeviceError, match=r"expected at most .* bytes of shared memory"):
        driver.function("module", "kernel", 1 << 20)


def step_program() -> Program:
    grid = (str(-(-VOCAB // BLOCK)), "rows", "1")
    memory = [Arg("buffer", "token_ids"), Arg("buffer", "logit_rows"), Arg("weight", "table")]
    call = Call("look_up", grid, (*memory, Arg("buffer", "logits")))
    inputs = (Buffer(n, "i32", (s,), "input", "0", f"{s} * 4") for n, s in FIELDS.items())
    logits = Buffer("logits", "f32", ("rows", str(VOCAB)), "output", "0", f"rows * {4 * VOCAB}")
    size = f"num_pages * {STATE_BYTES}"
    state = Buffer("kv", "i32", ("num_pages", str(STATE_BYTES // 4)), "state", "0", size)
    return Program(
        entry="step", symbols=("tokens", "seqs", "pages", "rows"), inputs=tuple(inputs),
        outputs=(logits,), temps=(), states=(state,), arena_bytes="0",
        buckets=(Bucket(None, (call,)),),
    )  # fmt: skip


@pytest.fixture(scope="module")
def artifact(kernels: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    driver = open_or_skip()
    path = tmp_path_factory.mktemp("cuda") / "look_up.sglk"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
            write_artifact(path, driver, kernels)
    finally:
        driver.close()
    with Artifact.open(path) as opened:
        yield opened


def write_artifact(path: Path, driver: CudaDriver, kernels: ModuleType) -> None:
    target = cuda_target(chips_named(("sm90",)))
    if driver.chip.capability < (9, 0):
        target = cuda_target(chips_named(("sm80",)))
    version = driver.chip.capability[0] * 10 + driver.chip.capability[1]
    made = [argmax(VOCAB, target), sample(VOCAB, target), place_tokens(target)]
    made.append(fill("f32", target))
    pack = {
        kernel.symbol: read_pack(compile_kernel(kernel, version))["cubin"]
        for entry in made
        for kernel in entry.kernels
    }
    pointers = {"token_ids": "*i32", "logit_rows": "*i32", "table": "*fp32", "logits": "*fp32"}
    constants: dict[str, object] = {"VOCAB": VOCAB, "BLOCK": BLOCK}
    pack["look_up"] = compiled(driver, kernels.look_up, pointers, constants)
    programs = [step_program(), *(entry.program for entry in made)]
    member = f"kernels/{driver.chip.arch}.pack"
    with ArtifactWriter(path) as writer:
        writer.add_bytes(member, write_pack(pack))
        for program in programs:
            writer.add_bytes(f"programs/{program.entry}.json", program.to_json())
        table = {
            "fill": FILL.to_json(), "bytes": 4 * VOCAB * VOCAB, "dtype": "f32",
            "shape": [VOCAB, VOCAB], "layout": "row", "sections": {},
        }  # fmt: skip
        variant = {"isa": driver.chip.arch, "library": member, "symbols": list(pack)}
        writer.finish({
            "format": list(FORMAT), "features": [FEATURE], "producer": "test",
            "model": {"name": "look-up", "architecture": "look-up", "vocab_size": VOCAB,
                      "context_length": 4096},
            "target": {"name": "cuda", "page_size": PAGE, "variants": [variant]},
            "programs": {p.entry: f"programs/{p.entry}.json" for p in programs},
            "weights": {"table": table},
        })  # fmt: skip


@pytest.fixture
def executable(artifact: Artifact) -> Iterator[CudaExecutable]:
    with CudaDevice().load(artifact, num_pages=600, max_tokens=512) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def table() -> NDArray[np.float32]:
    made: NDArray[np.float32] = fill_array(FILL, VOCAB * VOCAB, "f32")
    return made.reshape(VOCAB, VOCAB)


def batch(tokens: Sequence[int]) -> StepBatch:
    """One token for each of as many sequences."""
    count = len(tokens)
    numbers = np.arange(count, dtype=np.int32)
    pages = 1 + numbers
    return StepBatch(
        token_ids=np.array(tokens, np.int32),
        positions=np.zeros(count, np.int32),
        slots=pages * np.int32(PAGE),
        query_start=np.arange(count + 1, dtype=np.int32),
        seq_lens=np.ones(count, np.int32),
        page_table=pages.reshape(count, 1),
        logit_rows=numbers,
    )


def draws(count: int, **changes: object) -> NDArray[np.void]:
    rows = np.zeros(count, SAMPLED_ROW)
    rows["row"], rows["top_k"], rows["temperature"] = np.arange(count), 1, 1
    rows["top_p"], rows["lowest"] = 1, -np.inf
    for name, value in changes.items():
        rows[name] = value
    return rows


@pytest.mark.parametrize("count", [1, 5, 64, 300])
def test_logits_and_tokens_are_those_of_the_table(
    executable: CudaExecutable, table: NDArray[np.float32], count: int
) -> None:
    tokens = np.random.default_rng(count).integers(0, VOCAB, count).tolist()
    for _ in range(3):  # compared with plain launches first, then a graph
        logits = executable.step(batch(tokens))
        rows = np.arange(count, dtype=np.int32)
        assert executable.argmax(rows).tolist() == table[tokens].argmax(1).tolist()
        assert np.array_equal(logits[count - 1], table[tokens[-1]])
    assert np.array_equal(np.asarray(logits), table[tokens])


@pytest.mark.parametrize("top_k", [1, 2])
def test_tokens_stay_on_the_device_while_steps_run_ahead(
    executable: CudaExecutable, table: NDArray[np.float32], top_k: int
) -> None:
    """Drawing with the uniform number 0 takes the lowest id of the two likeliest tokens."""
    first = [7, 4999, 0]
    rows = draws(3, top_k=top_k)
    executable.submit(batch(first), rows)
    expected, steps = np.array(first), 12
    for _ in range(steps):
        executable.submit(batch([-1, -2, -3]), rows)
        likeliest = np.argsort(-table[expected], axis=1, kind="stable")[:, :top_k]
        expected = likeliest.min(1)
        assert executable.collect().tolist() == expected.tolist()
    assert len(executable.collect()) == 3


@pytest.mark.parametrize("count", [1, 5, 8])
def test_steps_follow_each_other_without_arrays(
    executable: CudaExecutable, table: NDArray[np.float32], count: int
) -> None:
    expected = np.random.default_rng(count).integers(0, VOCAB, count)
    rows = draws(count)
    rows.flags.writeable = False
    executable.submit(batch(expected.tolist()), rows)
    for _ in range(20):
        assert executable.submit_next(rows)
        expected = table[expected].argmax(1)
        assert executable.collect().tolist() == expected.tolist()
    assert executable.collect().tolist() == table[expected].argmax(1).tolist()


def test_some_rows_are_drawn(executable: CudaExecutable, table: NDArray[np.float32]) -> None:
    tokens = [3, 1, 4, 1, 5]
    executable.step(batch(tokens))
    rows = draws(2, top_k=2, uniform=0.999999)
    rows["row"] = [4, 0]
    wanted = [int(np.argsort(-table[t], kind="stable")[:2].max()) for t in (5, 3)]
    assert executable.sample(rows).tolist() == wanted


def test_every_mode_of_graphs_agrees(artifact: Artifact) -> None:
    found = []
    for mode in ("off", "trust", "check"):
        with (
            knobs.override(graphs=mode),
            CudaDevice().load(artifact, num_pages=64, max_tokens=64) as loaded,
        ):
            steps = [np.asarray(loaded.step(batch([9, 8, 7]))) for _ in range(3)]
            assert all(np.array_equal(steps[0], step) for step in steps)
            found.append(steps[0])
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[1], found[2])


def test_memory_comes_back(artifact: Artifact, driver: CudaDriver) -> None:
    """Each load takes a third of what is free; other processes may use the device meanwhile."""
    pages = driver.free_bytes()[0] // (3 * STATE_BYTES)
    for _ in range(5):
        with CudaDevice().load(artifact, num_pages=pages, max_tokens=64) as loaded:
            assert loaded.memory_bytes()["state"] == pages * STATE_BYTES
