"""Programs made by hand fit their kernels and what the device asks of them."""

from __future__ import annotations

import pytest
from sglk.targets.artifact import Program
from sglk.targets.artifact.kernel_pack import PackedKernel
from sglk.targets.cuda.device.bound_program import BoundProgram
from sglk.targets.cuda.device.draws import Draws
from sglk.targets.cuda.device.kernel_table import KernelTable
from sglk.targets.cuda.device.memory import DeviceMemory
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.cuda.device.program_code import encode
from sglk.targets.cuda.entries import Entry, argmax, fill, place_tokens, sample
from sglk.targets.cuda.facts import chips_named, cuda_target
from sglk.targets.dim_code import parse

TARGET = cuda_target(chips_named(("sm90",)))
ENTRIES = {
    "argmax": argmax(128256, TARGET),
    "sample": sample(1000, TARGET),
    "place_tokens": place_tokens(TARGET),
    "fill_bf16": fill("bf16", TARGET),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_calls_fit_their_kernels(name: str) -> None:
    """What a pack of these kernels says of their arguments is what the calls give."""
    entry = ENTRIES[name]
    assert entry.program.entry == name
    assert Program.from_json(entry.program.to_json()) == entry.program
    assert [c.kernel for c in entry.program.buckets[0].calls] == [k.symbol for k in entry.kernels]
    driver = NullDriver()
    bound = bind(driver, entry)
    sizes = {"rows": 3, "tokens": 300, "count": 10_000, "seed": -1, "step": 5, "mean": -7}
    symbols = {symbol: sizes[symbol] for symbol in entry.program.symbols}
    inputs = {buffer.name: (1 << 20, 1 << 24) for buffer in entry.program.inputs}
    driver.launch(bound.prepare(symbols, inputs).calls)
    grids = [(r.grid.x, r.grid.y) for r in driver.of("launch") if r.grid is not None]
    expected = {"argmax": [(63, 3), (3, 1)], "sample": [(1, 3), (3, 1)]}
    assert grids == expected.get(name, [(2 if name == "place_tokens" else 3, 1)])


def bind(driver: NullDriver, entry: Entry) -> BoundProgram:
    memory = DeviceMemory(driver, "stream")
    for buffer in entry.program.outputs:
        memory.allocate(("output", buffer.name), 1 << 16)
    kernels = {
        k.symbol: PackedKernel({"num_warps": 4, "params": [t for _, t in k.signature]}, b"")
        for k in entry.kernels
    }
    table = KernelTable(driver, kernels, "pack")
    return BoundProgram(driver, "stream", encode(entry.program), table, memory, num_pages=8)


def test_the_device_knows_every_parameter_of_a_draw() -> None:
    driver = NullDriver()
    memory = DeviceMemory(driver, "stream")
    draws = Draws(driver, "stream", memory, bind(driver, ENTRIES["sample"]))
    assert {name: str(dtype) for name, dtype in draws.dtypes.items()} == {
        "top_k": "int32", "temperature": "float32", "lowest": "float32",
        "top_p": "float64", "uniform": "float64",
    }  # fmt: skip


def test_pointers_are_promised_to_be_aligned_and_are() -> None:
    """Temps start at multiples of 256 bytes for every number of rows."""
    for entry in ENTRIES.values():
        for kernel in entry.kernels:
            options = dict(kernel.options)
            pointers = {name for name, kind in kernel.signature if kind.startswith("*")}
            assert set(options["aligned"]) == pointers
        code = encode(entry.program)
        for rows in (1, 3, 64):
            known = {"rows": rows, "tokens": rows, "count": rows}
            known |= {"num_pages": 2, "seed": 0, "step": 0, "mean": 0}
            for offset in code.buckets[0].extents[:, 1].tolist():
                size = parse(code.sizes[offset], code.all_symbols)
                assert size.evaluate(known) % 256 == 0
