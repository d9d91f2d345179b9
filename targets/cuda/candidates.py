"""Ways to compute a model's products, compiled beside each other for ``sglk tune`` to measure.

An artifact that has them (``sglk-compile --candidates``) holds, beside all else,

    candidates/listing.json   each way: its plan, its weights' bytes, and its record (measured.py)
    candidates/N.plan         the launches of one way, as in plans/
    candidates/<arch>.pack    the kernels of all of them

which nothing but `device/tune.py` reads.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...ir.dim import dim, prod
from ...ir.dtype import BF16, DType
from ...ir.graph import Graph, Node
from ...ir.ops.linear import GatedLinear, Linear
from ...ir.target import Target
from ...ir.types import TensorType
from ...passes.choose_tiles import TileChoice
from ..artifact.fill import DTYPES
from ..artifact.program import Program
from ..kernel import Kernel
from ..lowering import Lowering, Operand, i32, token_ranges
from ..rows.linear import row_count
from ..table import OperatorRow, always
from ..tilec import KernelCache
from .build import build_libraries
from .compile import lower
from .device.plan_file import to_bytes
from .device.program_code import encode
from .device.tune import FOLDER, FORMAT, LISTING
from .facts import Chip
from .fp8_rows import fp8_operands
from .measured import Product
from .product_launch import launch_product
from .rows_linear import NOMINAL_ROWS, ROWS, ways
from .tiles import LinearConfig
from .weight_form import E4M3, form_of, weight_operands

Progress = Callable[[str, int, int], None]
ENTRY = "candidate"
BYTES = {**DTYPES, "i8": 1}
"""Of one element of a weight's part."""
MOST_LOGIT_ROWS = 256
"""Rows of products whose rows are not the tokens of a step: prompts ask for few of them."""


@dataclass(frozen=True)
class Way:
    """One way to compute a product whose weight has this type."""

    product: Product
    weight: DType
    config: LinearConfig

    def record(self) -> dict[str, object]:
        """As in a tuning file, without the time."""
        p, c = self.product, self.config
        record: dict[str, object] = {
            "n": p.n, "k": p.k, "gated": int(p.gated), "m": p.m, "maps": 0, "kernel": c.kernel,
            "constants": c.constants, "num_warps": c.num_warps, "num_stages": c.num_stages,
        }  # fmt: skip
        plain = {"form": "bf16", "x": "bf16"}
        told = {"form": p.form.key, "x": c.x}
        return record | {name: told[name] for name in plain if told[name] != plain[name]}


def products_of(lowering: Lowering) -> dict[Product, DType]:
    """Products of a graph at every row count that kernels are chosen for, with the weight's type.

    Equal products count once, whatever their epilogues.
    """
    found: dict[Product, DType] = {}
    for node, row in lowering.selection.chosen.items():
        if row in ROWS:
            found |= dict.fromkeys(_sizes(node, lowering.target), node.inputs[1].type.dtype)
    return found


def _sizes(node: Node, target: Target) -> list[Product]:
    x, w = node.inputs[:2]
    n, k = w.type.concrete({})
    gated = isinstance(node.op, GatedLinear)
    rows = row_count(x)
    counts = [r.high or NOMINAL_ROWS for r in token_ranges(target.token_buckets)]
    if isinstance(rows, int):
        counts = [rows]
    elif rows != dim("tokens"):
        counts = [count for count in counts if count <= MOST_LOGIT_ROWS]
    return [Product(m, n // 2 if gated else n, k, gated, form_of(w)) for m in counts]


def candidates(
    lowering: Lowering, chips: Sequence[Chip], most: int, progress: Progress
) -> dict[str, bytes]:
    """Members of an artifact with the ``most`` promising ways to compute each product."""
    target = lowering.target
    found = [
        Way(product, weight, config)
        for product, weight in products_of(lowering).items()
        for config in ways(target, product, most)
    ]
    kernels: dict[str, Kernel] = {}
    members: dict[str, bytes] = {}
    listed = []
    for number, way in enumerate(found):
        name = f"{FOLDER}/{number}.plan"
        alone, program = lowered(way, target)
        kernels |= alone.kernels
        members[name] = to_bytes(encode(program))
        weights = {
            use.name: int(prod(use.shape)) * BYTES[use.dtype] for use in alone.weights.values()
        }
        skipped = int(way.config.x == E4M3)  # the launch that makes the rows
        listed.append(
            {"plan": name, "weights": weights, "skipped": skipped, "record": way.record()}
        )
    libraries = build_libraries(list(kernels.values()), chips, KernelCache(), progress)
    members |= {f"{FOLDER}/{library.isa}.pack": library.data for library in libraries}
    content = {"format": FORMAT, "arch": target.arch, "candidates": listed}
    return members | {LISTING: json.dumps(content).encode()}


def lowered(way: Way, target: Target) -> tuple[Lowering, Program]:
    """A program that computes one product in one way."""
    p = way.product
    graph = Graph(ENTRY)
    x = graph.input("x", TensorType(BF16, (p.m, p.k)))
    w = graph.param("w", TensorType(way.weight, (p.n * (2 if p.gated else 1), p.k)))
    op = GatedLinear("silu", dtype=BF16) if p.gated else Linear(dtype=BF16)
    graph.outputs = [graph.emit(op, x, w)]
    lowering = lower(graph, target)
    node = graph.nodes[-1]
    emit = functools.partial(_emit, way)
    row = OperatorRow(node.op.name, ENTRY, "triton", 0, always, emit)
    lowering.selection.chosen[node] = row
    return lowering, lowering.program(ENTRY, ())


def _emit(way: Way, node: Node, ctx: Lowering) -> None:
    p, config = way.product, way.config
    x, w = node.inputs
    arguments: dict[str, Operand | None] = {
        **weight_operands(ctx, w),
        "bias": None,
        "residual": None,
        "y": ctx.memory(node.outputs[0]),
        "rows": i32(p.m),
        "x": ctx.memory(x),
    }
    if config.x == E4M3:
        arguments |= fp8_operands(ctx, x, False, 1)
    constants: Mapping[str, object] = {
        "K": p.k, "N": p.n, "ACT": "silu" if p.gated else "none", "GATED": int(p.gated),
    }  # fmt: skip
    grid = (config.grid(p.m, p.n, p.gated), 1, 1)
    limit = ctx.target.memory[0].bytes
    choice = TileChoice(config.constants, 0.0, ENTRY, config.smem_bytes, limit, "", ())
    launch_product(ctx, config, choice, grid, arguments, constants, p.form, None)
