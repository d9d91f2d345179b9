"""A GGUF file as a model: config, weights under Hugging Face names, tokenizer.

>>> model = open_gguf(Path("SmolLM2-135M-Instruct.Q4_1.gguf"))            # doctest: +SKIP
>>> model.source.info("model.layers.0.self_attn.q_proj.weight")           # doctest: +SKIP
WeightInfo(name='model.layers.0.self_attn.q_proj.weight', dtype='q4_1', shape=(576, 576), ...)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import FrontendError
from ..ir.blocks import BLOCK_TYPES, BlockArray
from ..ir.quantized import Quantized
from .gguf_config import Facts, build_config, heads
from .gguf_header import GgufHeader, read_header
from .gguf_names import Binding, architecture, bind, deinterleave
from .gguf_tokenizer import tokenizer_from_gguf
from .model_files import ModelFiles
from .weights import WeightInfo, as_float32, tie_embedding


@dataclass(frozen=True, eq=False)
class GgufSource:
    """The tensors of a GGUF file, as the Hugging Face model wants them."""

    header: GgufHeader
    bindings: Mapping[str, Binding]

    @property
    def where(self) -> str:
        return str(self.header.path)

    def names(self) -> Sequence[str]:
        return list(self.bindings)

    def info(self, name: str) -> WeightInfo:
        tensor = self.header.tensors[self._binding(name).tensor]
        return WeightInfo(name, tensor.dtype, tensor.shape)

    def read(self, name: str) -> NDArray[np.float32] | Quantized:
        binding = self._binding(name)
        tensor = self.header.tensors[binding.tensor]
        raw = self.header.raw(binding.tensor)
        if tensor.dtype in BLOCK_TYPES:
            rows, columns = tensor.shape
            blocks = BlockArray(tensor.dtype, (rows, columns), raw.reshape(rows, -1))
            return blocks if binding.heads is None else blocks.take_rows(self._order(binding))
        values = as_float32(raw, tensor.dtype, tensor.shape)
        if binding.heads is not None:
            return values[self._order(binding)]
        return values - np.float32(1) if binding.minus_one else values

    def _order(self, binding: Binding) -> NDArray[np.int64]:
        return deinterleave(self.header.tensors[binding.tensor].shape[0], binding.heads or 1)

    def _binding(self, name: str) -> Binding:
        if name not in self.bindings:
            raise FrontendError(
                f"{self.where}: expected a tensor for {name}, got none of that name"
            )
        return self.bindings[name]


def open_gguf(path: Path) -> ModelFiles:
    """Read and check the header; weights stay in the file until they are asked for."""
    header = read_header(path)
    facts = Facts(header, architecture(path, header.metadata))
    config = build_config(facts)
    bindings = bind(path, facts.arch, list(header.tensors), *heads(facts))
    _check_layouts(header, bindings)
    name = header.metadata.get("general.name")
    return ModelFiles(
        name=name if isinstance(name, str) and name else path.stem,
        config=config,
        source=tie_embedding(GgufSource(header, bindings), config.tie_word_embeddings),
        tokenizer=tokenizer_from_gguf(path, header.metadata, config.vocab_size),
    )


def _check_layouts(header: GgufHeader, bindings: Mapping[str, Binding]) -> None:
    """What is undone on reading must be possible: pairs of rows per head, blocks in matrices."""
    for binding in bindings.values():
        tensor = header.tensors[binding.tensor]
        if tensor.dtype in BLOCK_TYPES and (len(tensor.shape) != 2 or binding.minus_one):
            raise FrontendError(
                f"{header.path}: {tensor.name}: expected {tensor.dtype} for matrices only, "
                f"got shape {list(tensor.shape)}"
            )
        if binding.heads and tensor.shape[0] % (2 * binding.heads):
            raise FrontendError(
                f"{header.path}: {tensor.name}: expected an even number of rows for each of "
                f"{binding.heads} heads, got {tensor.shape[0]} rows"
            )
