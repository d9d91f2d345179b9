"""Foreign models in, graphs out. `load_model` takes whatever a PyTorch user has.

>>> captured = load_model("SmolLM2-135M-Instruct.Q4_1.gguf")              # doctest: +SKIP
>>> print(captured.graph)                                                 # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import FrontendError
from .captured import Captured, ModelInfo, Progress

__all__ = ["Captured", "ModelInfo", "Progress", "load_model"]


def load_model(
    source: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, Mapping[int, str]] | None = None,
    has_weights: bool = True,
    progress: Progress | None = None,
) -> Captured:
    """Capture a Hugging Face folder, a ``.gguf`` or ``.pt2`` file, or a torch module or program.

    A module that is no transformers causal LM needs example inputs (``args``, ``kwargs``); ``dims``
    names the sizes that stay symbolic: ``{"x": {1: "tokens"}}``. Without ``has_weights`` a config
    is enough, ``config.json`` itself or a folder with one, and there are none to read afterwards.
    ``progress(stage, done, total)`` is called along the way. Anything else is refused with
    `FrontendError`.
    """
    if isinstance(source, str | Path) and Path(source).suffix != ".pt2":
        from .hf import load_hf

        return load_hf(source, progress, has_weights=has_weights)
    if not has_weights:
        raise FrontendError(
            "--weights dummy: expected a Hugging Face config, a folder with one or a .gguf file, "
            f"got {source if isinstance(source, str | Path) else type(source).__name__}"
        )
    import torch  # only now: a wrong path is refused without the seconds that torch takes

    from .torch_module import load_module, load_program, read_program

    if isinstance(source, str | Path):
        return load_program(read_program(Path(source)), progress)
    if isinstance(source, torch.export.ExportedProgram):
        return load_program(source, progress)
    if isinstance(source, torch.nn.Module):
        return load_module(source, args, kwargs, dims, progress)
    raise FrontendError(
        f"model: expected a folder, a .gguf or .pt2 file, a torch module or an exported program, "
        f"got {type(source).__name__}"
    )
