"""What a model on disk gives, whatever its format, and the door that recognises the format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import FrontendError
from .no_weights import NoWeights
from .tokenizer_files import TokenizerFiles
from .weights import WeightSource


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """A model before capture: `config` is a transformers config, weights are not read yet."""

    name: str
    config: Any
    source: WeightSource
    tokenizer: TokenizerFiles | None
    """None: the model has no tokenizer and takes token ids only."""


def open_config(path: str | Path) -> ModelFiles:
    """The same without weights: also a config file itself, or a folder that has no others."""
    from .gguf_source import open_gguf
    from .safetensors_source import read_config
    from .tokenizer_files import tokenizer_from_folder

    place = Path(path)
    if place.suffix == ".gguf":
        files = open_gguf(place)
        return replace(files, source=NoWeights(str(place)))
    folder = place.resolve().parent if place.suffix == ".json" else place.resolve()
    is_named = place.suffix == ".json" and place.stem != "config"
    return ModelFiles(
        name=place.stem if is_named else folder.name,
        config=read_config(place),
        source=NoWeights(str(place)),
        tokenizer=tokenizer_from_folder(folder) if place.suffix != ".json" else None,
    )


def open_model(path: str | Path) -> ModelFiles:
    """Open a Hugging Face folder or a ``.gguf`` file; anything else raises `FrontendError`."""
    from .gguf_source import open_gguf
    from .safetensors_source import open_folder

    place = Path(path)
    try:
        is_folder, is_file = place.is_dir(), place.is_file()
    except OSError as error:
        raise FrontendError(f"{place}: expected a readable path, got: {error.strerror}") from error
    if not is_folder and not is_file:
        raise FrontendError(
            f"{place}: expected a Hugging Face folder or a .gguf file, got no such path"
        )
    return open_folder(place) if is_folder else open_gguf(place)
