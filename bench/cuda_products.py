"""Products of an artifact beside cuBLAS, each as a step runs it, and the ratio of their times.

usage: python bench/cuda_products.py model.sglk --rows 256 [--device cuda:0] [--most 1.1]

The artifact is one for CUDA that was compiled with ``--candidates``. Ours are the fastest of its
ways, as `sglk tune` times them; cuBLAS is what torch calls, which this bench alone needs. Both run
in graphs, on weights that no cache holds, each time after a rest, in turns of one process; the
ratio is the median of the rounds. cuBLAS multiplies and no more: ours also add residuals, activate
and gate. Status 1 if ours take more than ``--most`` times as long.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sglk.targets.artifact import Artifact
from sglk.targets.registry import open_device

POOL_BYTES = 512 << 20
"""Of weights, several times the cache of any chip."""
MOST_COPIES, LEAST_LAUNCHES = 16, 8
REPLAYS, REST_S = 9, 5e-3
"""As `sglk tune` does: at its limit of power a chip is slower, the more the longer it works."""


class Product(NamedTuple):
    """[rows, k] @ [n, k]^T; gated: of two such weights."""

    n: int
    k: int
    gated: int


def fastest(records: Sequence[Mapping[str, Any]], rows: int) -> dict[Product, float]:
    """µs of each product of plain weights at so many rows.

    >>> record = {"n": 8, "k": 4, "gated": 0, "m": 2, "us": 3.0}
    >>> fastest([record, record | {"us": 2.0}, record | {"m": 9}, record | {"form": "i8"}], 2)
    {Product(n=8, k=4, gated=0): 2.0}
    """
    found: dict[Product, float] = {}
    for each in records:
        if each["m"] == rows and "form" not in each:
            product = Product(int(each["n"]), int(each["k"]), int(each["gated"]))
            found[product] = min(float(each["us"]), found.get(product, float("inf")))
    return found


def cublas_us(product: Product, rows: int, wide: bool) -> float:
    """µs of torch.mm in a graph; ``wide``: results in f32."""
    import torch

    def uniform(count: int, width: int) -> torch.Tensor:
        return torch.rand(count, width, device="cuda").mul_(2).sub_(1).bfloat16()

    num = product.n * (1 + product.gated)
    copies = max(1, min(MOST_COPIES, POOL_BYTES // (2 * num * product.k)))
    weights = [uniform(num, product.k) for _ in range(copies)]
    x, dtype = uniform(rows, product.k), torch.float32 if wide else torch.bfloat16
    y = torch.empty(rows, num, device="cuda", dtype=dtype)
    more: dict[str, Any] = {"out_dtype": torch.float32} if wide else {}
    launches = max(LEAST_LAUNCHES, copies)
    torch.mm(x, weights[0].t(), **more, out=y)  # chooses a kernel, which a capture must not
    torch.cuda.synchronize()
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for number in range(launches):
            torch.mm(x, weights[number % copies].t(), **more, out=y)
    event: Any = torch.cuda.Event
    begin, end = (event(enable_timing=True) for _ in range(2))
    for _ in range(1 + REPLAYS):
        time.sleep(REST_S)
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(statistics.median(times[1:])) * 1e3 / launches


def table(
    rounds: Sequence[Mapping[Product, tuple[float, float]]], rows: int, most: float
) -> tuple[list[str], bool]:
    """A line for each product (medians of ours and of cuBLAS, their ratio); whether all hold."""
    lines, kept = [f"{rows} rows{'n':>10}{'k':>8}{'ours µs':>10}{'cuBLAS':>10}{'ratio':>8}"], True
    for product in rounds[0]:
        pairs = [each[product] for each in rounds]
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        kept = kept and ratio <= most
        n = f"2x{product.n}" if product.gated else str(product.n)
        lines.append(
            f"{n:>{len(f'{rows} rows') + 10}}{product.k:8}{ours:10.2f}{theirs:10.2f}{ratio:8.3f}"
        )
    return lines, kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=float, default=1.1)
    options = parser.parse_args()
    device: Any = open_device(options.device)
    rounds: list[dict[Product, tuple[float, float]]] = []
    with Artifact.open(options.artifact) as artifact:
        model: Any = artifact.manifest["model"]
        for _ in range(options.rounds):
            content, _refused = device.tune(artifact, lambda *_: None, (options.rows,))
            ours = fastest(content["linear"], options.rows)
            rounds.append({
                product: (us, cublas_us(product, options.rows, product.n == model["vocab_size"]))
                for product, us in ours.items()
            })  # fmt: skip
    lines, kept = table(rounds, options.rows, options.most)
    print("\n".join(lines))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
