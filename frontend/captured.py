"""What every frontend hands over: the graph, its weights, the tokenizer, facts of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ..ir.dim import Dim
from ..ir.graph import Graph, Node
from ..ir.ops.attention import Attention
from .tokenizer_files import TokenizerFiles
from .weights import WeightSource

if TYPE_CHECKING:
    from .call_signature import CallSignature

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``."""


def silent(stage: str, done: int, total: int) -> None:
    """The default of every ``progress`` argument."""


@dataclass(frozen=True)
class ModelInfo:
    """Facts for people and for the manifest; 0 means that the model does not say."""

    name: str
    architecture: str
    vocab_size: int
    context_length: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    limits: Mapping[str, int] = field(default_factory=dict)
    """The largest value of free sizes that have one, as in tables of positions."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A model ready for the passes; ``weights`` has a tensor for every parameter of ``graph``."""

    graph: Graph
    weights: WeightSource
    tokenizer: TokenizerFiles | None
    """None: the model takes token ids only."""
    info: ModelInfo
    signature: CallSignature | None = None
    """How the torch module is called that this is a program of."""


def describe(
    graph: Graph, name: str, architecture: str, context_length: int = 0, hidden_size: int = 0
) -> ModelInfo:
    """The facts that the graph itself shows: heads of its first attention, size of its logits."""
    layers = [node for node in graph.nodes if isinstance(node.op, Attention)]
    heads, kv_heads, head_dim = _heads(layers[0]) if layers else (0, 0, 0)
    shape = graph.outputs[0].type.shape if graph.outputs else ()
    return ModelInfo(
        name=name,
        architecture=architecture,
        vocab_size=_known(shape[-1]) if shape else 0,
        context_length=context_length,
        num_layers=len(layers),
        hidden_size=hidden_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
    )


def _heads(attention: Node) -> tuple[int, int, int]:
    q, k, *_ = (v.type.shape for v in attention.inputs)
    return _known(q[1]), _known(k[1]), _known(q[3])


def _known(size: Dim) -> int:
    return size if isinstance(size, int) else 0
