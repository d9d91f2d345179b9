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
    const: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    has_weights: bool = True,
    progress: Progress | None = None,
) -> Captured:
    """Capture a Hugging Face folder, a ``.gguf``, ``.pt2`` or ``.onnx`` file, or a torch module.

    A module that is no transformers causal LM needs example inputs (``args``, ``kwargs``); ``dims``
    names the sizes that stay symbolic: ``{"x": {1: "tokens"}}``. Without ``has_weights`` a config
    is enough, ``config.json`` itself or a folder with one, and there are none to read afterwards.
    Of an ONNX model ``const`` fixes inputs to numbers, and ``sizes`` named sizes: the other names
    stay symbolic. An exported program and a `Captured` come as they are.
    ``progress(stage, done, total)`` is called along the way. Anything else is refused with
    `FrontendError`.
    """
    if isinstance(source, Captured):
        return source
    if _is_onnx(source):
        from .onnx.module import load_onnx

        return load_onnx(source, constants=const, sizes=sizes, progress=progress)
    if const or sizes:
        raise FrontendError("--const, --dim: expected an ONNX model with them, got another kind")
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
        f"model: expected a folder, a .gguf, .pt2 or .onnx file, a torch module or an exported "
        f"program, got {type(source).__name__}"
    )


def _is_onnx(source: Any) -> bool:
    """A path by its suffix; a `ModelProto` by its class's name, since onnx may not be installed."""
    if isinstance(source, str | Path):
        return Path(source).suffix == ".onnx"
    return type(source).__name__ == "ModelProto"
