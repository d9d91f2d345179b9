"""What share of the machine's limits a measurement reaches, by the bytes and operations it needs.

A decode step reads all weights and each request's KV cache once; a prefill computes every token's
products and half of the square of attention scores. The limit of either is the slower of moving the
bytes at the measured bandwidth and of computing at the fastest measured rate on 16-bit numbers.
Peers' weights count as the bytes of their files, KV entries as two bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglk.bench.contest import Contender, Result, Scenario
from sglk.cli.limits import Limits
from sglk.targets.artifact import Artifact

WEIGHT_FILES = (".gguf", ".bin", ".data", ".safetensors", ".sglk")


@dataclass(frozen=True)
class ModelSize:
    """Of a decoder: multiply-adds of a token's linear layers and of its head, attention, KV."""

    body: int
    head: int
    layers: int
    query_width: int
    kv_bytes_per_token: int

    def prefill_flops(self, scenario: Scenario) -> float:
        """The shared part is computed once."""
        own, count = scenario.prompt - scenario.shared, scenario.concurrency
        tokens = scenario.shared + count * own
        pairs = scenario.shared**2 / 2 + count * own * (scenario.shared + own / 2)
        attention = 4.0 * pairs * self.query_width * self.layers
        return 2.0 * (tokens * self.body + count * self.head) + attention

    def decode_flops(self, scenario: Scenario) -> float:
        """Of one step with every request in the middle of its answer."""
        context = scenario.prompt + scenario.new / 2
        attention = 4.0 * context * self.query_width * self.layers
        return scenario.concurrency * (2.0 * (self.body + self.head) + attention)

    def decode_bytes(self, scenario: Scenario, weight_bytes: int) -> float:
        context = scenario.prompt + scenario.new / 2
        return weight_bytes + scenario.concurrency * context * self.kv_bytes_per_token


def model_size(path: str) -> ModelSize | None:
    """From one of our artifacts; None when it is no decoder of the usual form."""
    artifact = Artifact.open(path)
    model: Any = artifact.manifest["model"]
    weights: Any = artifact.manifest["weights"]
    artifact.close()
    keys = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
    if not all(isinstance(model.get(key), int) for key in keys):
        return None
    vocabulary, hidden, layers, heads, kv_heads, width = (model[key] for key in keys)
    shapes = [w["shape"] for w in weights.values() if len(w["shape"]) == 2]
    body = sum(math.prod(shape) for shape in shapes if vocabulary not in shape)
    return ModelSize(
        body, vocabulary * hidden, layers, heads * width, 4 * layers * kv_heads * width
    )


def weight_bytes(path: str) -> int:
    """Bytes of the files that hold a model's weights."""
    place = Path(path)
    files = [place] if place.is_file() else [p for p in place.iterdir() if p.is_file()]
    return sum(p.stat().st_size for p in files if p.suffix in WEIGHT_FILES)


def shares(
    comparison: Result, contenders: list[Contender], size: ModelSize, limits: Limits
) -> dict[str, Result]:
    """Measured speed by the limit, of prefill and decode, for each contender with figures."""
    scenario, found = Scenario(**comparison["scenario"]), {}
    for each in contenders:
        row = comparison["medians"].get(each.name)
        if row is None:
            continue
        weights = weight_bytes(each.model)
        moved = size.decode_bytes(scenario, weights)
        step = max(moved / limits.bandwidth(moved), size.decode_flops(scenario) / limits.rate())
        read = weights / limits.bandwidth(weights)
        prefill = max(read, size.prefill_flops(scenario) / limits.rate())
        tokens = scenario.concurrency * scenario.prompt
        found[each.name] = {
            "decode_limit_tokens_per_s": scenario.concurrency / step,
            "prefill_limit_tokens_per_s": tokens / prefill,
            "decode": _share(row["decode_tokens_per_s"], scenario.concurrency / step),
            "prefill": _share(row["prefill_tokens_per_s"], tokens / prefill),
        }
    return found


def _share(value: float | None, limit: float) -> float | None:
    return value / limit if value else None
