"""A model on disk, Hugging Face folder or GGUF: files checked, graph captured, weights left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FrontendError
from ..ir.dtype import dtype
from ..ir.graph import Graph
from .captured import Captured, Progress, describe
from .model_files import open_config, open_model
from .quantized.permuted import gather_inputs
from .weights import WeightSource, check_against, columns_of, without_false_ties


def load_hf(
    path: str | Path, progress: Progress | None = None, *, has_weights: bool = True
) -> Captured:
    """Capture the model at ``path``; without ``has_weights`` its config is enough.

    Refuses with one sentence what is no model, a model type that transformers does not know, an
    architecture that is no causal language model, and weights that do not fit the config.
    """
    files = open_model(path) if has_weights else open_config(path)
    check_is_causal(files.config, str(path))
    from .capture import capture_causal_lm  # torch: a wrong path is refused without waiting for it

    graph = capture_causal_lm(files.config, progress)
    source = files.source
    if has_weights:
        wanted = {v.name: v.type.concrete({}) for v in graph.params}
        source = _named_as(wanted, without_false_ties(source, wanted), files.config)
        check_against(source, wanted)
        _refuse_integers(graph, source)
        _refuse_lost_biases(wanted, source)
        gather_inputs(graph, columns_of(source))
    text = files.config.get_text_config(decoder=True)
    info = describe(
        graph,
        name=files.name,
        architecture=files.config.model_type,
        context_length=context_length(text),
        hidden_size=int(getattr(text, "hidden_size", 0)),
    )
    return Captured(graph, source, files.tokenizer, info)


def _named_as(wanted: Iterable[str], source: WeightSource, config: Any) -> WeightSource:
    """Tensors under the model's names: a checkpoint may have others, or tensors in pieces."""
    if set(wanted) <= set(source.names()):
        return source
    from .capture import build_without_weights
    from .checkpoint_names import with_model_names

    return with_model_names(source, build_without_weights(config))


def _refuse_integers(graph: Graph, source: WeightSource) -> None:
    """Numbers without the scales that make weights of them."""
    wrong = [
        f"{v.name} of {info.dtype}"
        for v in graph.params
        if v.type.dtype.is_float and not dtype((info := source.info(v.name)).dtype).is_float
    ]
    if wrong:
        raise FrontendError(
            f"{source.where}: expected floats, or a quantization_config in config.json that tells "
            f"of scales, got {', '.join(wrong[:4])}"
            + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
        )


def _refuse_lost_biases(wanted: Iterable[str], source: WeightSource) -> None:
    """Quantizers may give layers biases that the model has none of; zeros are left out."""
    known, model = set(source.names()), set(wanted)
    for name in sorted(known - model):
        weight = name.removesuffix(".bias") + ".weight"
        if not name.endswith(".bias") or weight not in model:
            continue
        if dtype(source.info(weight).dtype).is_block and np.asarray(source.read(name)).any():
            raise FrontendError(
                f"{source.where}: expected zeros in {name}, as the model adds no bias there, got "
                "other numbers (the weights and the config belong to different models)"
            )


def context_length(config: Any) -> int:
    """The longest sequence that is computed as the config asks, 0 when it does not say."""
    from .context_limit import bounded
    from .rope_length import exact_context

    stated = int(getattr(config, "max_position_embeddings", None) or 0)  # below 0: no limit
    return bounded(config, exact_context(config, max(stated, 0)))


def check_is_causal(config: Any, where: str) -> None:
    """Refuse a config without a causal LM, and a checkpoint that was saved from something else."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    made_for = ", ".join(getattr(config, "architectures", None) or [])
    known: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    model = known[type(config)].__name__ if type(config) in known else ""
    if not model or not _is_lm(made_for or model, model):
        raise FrontendError(
            f"{where}: expected a causal language model, got {made_for or config.model_type} "
            "(encoders, encoder-decoders and classifiers generate no text)"
        )


def _is_lm(architectures: str, model: str) -> bool:
    """``model``, transformers' own for the type, has a name of another kind for a few types."""
    kinds = (model, "CausalLM", "LMHead", "ConditionalGeneration")
    return any(kind in architectures for kind in kinds)
