"""Small valid inputs for any graph: what ``SGLK_VERIFY`` feeds the interpreter.

Random integers would not do for a step: query ranges must nest, and page tables must name pages
that exist.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from ..ir.dim import symbols_of
from ..ir.graph import Graph
from ..ir.op import Array
from ..ir.ops.attention import PagedAttention
from ..ir.testing import random_array
from ..ir.types import TensorType

PLAIN_SIZE = 5
"""What a symbol stands for in a graph that is no step."""
SEED = 20


def sample_inputs(graph: Graph) -> tuple[dict[str, int], dict[str, Array]]:
    """Sizes for every symbol, and arrays for every input and state."""
    if any(v.name == "query_start" for v in graph.inputs):
        return _step_inputs(graph)
    symbols = {name for v in graph.values() for d in v.type.shape for name in symbols_of(d)}
    sizes = dict.fromkeys(sorted(symbols), PLAIN_SIZE)
    arrays = _random(graph, sizes)
    for value in graph.inputs:
        if value.name == "position_ids":
            arrays[value.name] = np.arange(PLAIN_SIZE, dtype=np.int32)[None]
    return sizes, arrays


def _random(graph: Graph, sizes: dict[str, int]) -> dict[str, Array]:
    rng = np.random.default_rng(SEED)
    return {v.name: random_array(v.type, rng, sizes) for v in (*graph.inputs, *graph.states)}


def _step_inputs(graph: Graph) -> tuple[dict[str, int], dict[str, Array]]:
    """Two new tokens of a sequence of five, a new sequence of three, and one padded row."""
    page_size = next((n.op.page_size for n in graph.nodes if isinstance(n.op, PagedAttention)), 4)
    batch = step_arrays([(3, 2), (0, 3)], page_size, padding=1)
    sizes = {
        "tokens": len(batch["token_ids"]),
        "seqs": len(batch["seq_lens"]),
        "pages": batch["page_table"].shape[1],
        "rows": len(batch["logit_rows"]),
        "num_slots": len(batch["seq_lens"]) + 1,
        "kv_slots": (int(batch["page_table"].max()) + 1) * page_size,
    }
    given = {v.name for v in graph.inputs}
    return sizes, {**_random(graph, sizes), **{k: v for k, v in batch.items() if k in given}}


def step_arrays(
    sequences: Sequence[tuple[int, int]], page_size: int, padding: int = 0
) -> dict[str, np.ndarray]:
    """A mixed batch. A sequence is (tokens already cached, tokens of this step), on its own pages.

    >>> step_arrays([(3, 2)], page_size=4)["slots"].tolist()
    [7, 8]
    """
    lengths = [cached + new for cached, new in sequences]
    columns = max(-(-length // page_size) for length in lengths)
    table = 1 + np.arange(len(lengths) * columns, dtype=np.int32).reshape(len(lengths), columns)
    positions = [np.arange(c, c + n) for c, n in sequences]
    slots = [table[i][p // page_size] * page_size + p % page_size for i, p in enumerate(positions)]
    pad = np.zeros(padding, np.int64)
    ends = np.cumsum([n for _, n in sequences])
    batch = {
        "token_ids": np.arange(int(ends[-1]) + padding) % 4,
        "positions": np.concatenate([*positions, pad]),
        "slots": np.concatenate([*slots, pad]),
        "query_start": np.concatenate([[0], ends]),
        "seq_lens": np.array(lengths),
        "page_table": table,
        "logit_rows": ends - 1,
        "state_slots": 1 + np.arange(len(lengths)),
    }
    return {name: array.astype(np.int32) for name, array in batch.items()}


def read_random_param(name: str, type: TensorType) -> Array:
    """The same array for the same name and type, whatever other parameters the graph has."""
    return random_array(type, np.random.default_rng(zlib.crc32(name.encode())), {})
