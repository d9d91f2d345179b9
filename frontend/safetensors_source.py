"""A Hugging Face folder as a model: config, weights from safetensors, tokenizer.

The header is read by us: the safetensors package copies tensors on its NumPy path and has no bf16.
Format: 8 bytes of header length, a JSON object, the tensors' bytes (safetensors README).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..errors import FrontendError
from .model_files import ModelFiles
from .quantized import read_quantized
from .tokenizer_files import read_json, tokenizer_from_folder
from .weights import (
    FLOAT_BYTES,
    WeightInfo,
    WeightSource,
    as_float32,
    map_file,
    tie_embedding,
)

_DTYPES: dict[str, tuple[str, np.dtype[Any]]] = {
    "F32": ("f32", np.dtype("<f4")),
    "F16": ("f16", np.dtype("<f2")),
    "BF16": ("bf16", np.dtype("<u2")),
    "BOOL": ("bool", np.dtype(np.bool_)),
    "U8": ("u8", np.dtype(np.uint8)),
    "I8": ("i8", np.dtype(np.int8)),
    "I32": ("i32", np.dtype("<i4")),
    "I64": ("i64", np.dtype("<i8")),
    "F8_E4M3": ("e4m3", np.dtype(np.uint8)),
    "F8_E5M2": ("e5m2", np.dtype(np.uint8)),
    "F8_E8M0": ("e8m0", np.dtype(np.uint8)),
}
"""Our name, and how the numbers lie in the file: bf16 and floats of 8 bits as their bits."""
_SMALL = ("e4m3", "e5m2", "e8m0")
_MAX_HEADER = 100_000_000  # the limit of the safetensors package


@dataclass(frozen=True)
class _Tensor:
    dtype: str
    numpy: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class SafetensorsFile:
    """One mapped file and its checked table."""

    path: Path
    data: NDArray[np.uint8]
    tensors: Mapping[str, _Tensor]

    @staticmethod
    def open(path: Path) -> SafetensorsFile:
        """Map `path` and check its header; anything amiss raises one `FrontendError`."""
        data = map_file(path)
        length = int.from_bytes(data[:8].tobytes(), "little")
        if data.size < 8 or length > min(data.size - 8, _MAX_HEADER):
            raise _damaged(
                path, f"expected a header of at most {data.size - 8} bytes, got {length}"
            )
        try:
            table = json.loads(data[8 : 8 + length].tobytes())
        except (ValueError, RecursionError) as error:
            raise _damaged(path, f"expected a JSON header, got: {error}") from error
        if not isinstance(table, dict) or not all(isinstance(e, dict) for e in table.values()):
            raise _damaged(path, "expected a JSON object of objects as header, got another value")
        table.pop("__metadata__", None)
        body = data[8 + length :]
        _refuse_types(path, table)
        return SafetensorsFile(
            path, body, {n: _entry(path, n, e, body.size) for n, e in table.items()}
        )


def _damaged(path: Path, text: str) -> FrontendError:
    return FrontendError(f"{path}: {text} (the file is damaged or its download incomplete)")


def _refuse_types(path: Path, table: Mapping[str, Any]) -> None:
    """All tensor types that are not read, at once and by name."""
    found = {str(entry.get("dtype")) for entry in table.values()}
    if refused := sorted(found - set(_DTYPES)):
        raise FrontendError(
            f"{path}: expected tensors of {', '.join(_DTYPES)}, got {', '.join(refused)} "
            "(save the model in one of the known types)"
        )


def _entry(path: Path, name: str, entry: Any, size: int) -> _Tensor:
    """A line of the table, with its numbers checked against the file."""
    shape, offsets = (entry.get(key) for key in ("shape", "data_offsets"))
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"{name}: expected a shape and two offsets, got {entry}")
    (dtype, numpy), (start, end) = _DTYPES[entry["dtype"]], offsets
    wanted = math.prod(shape) * numpy.itemsize
    if end - start != wanted or end > size:
        raise _damaged(
            path,
            f"{name}: expected {wanted} bytes for {dtype} of {shape} inside {size} bytes, "
            f"got bytes {start} to {end}",
        )
    return _Tensor(dtype, numpy, tuple(shape), start, end)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value
    )


@dataclass(frozen=True, eq=False)
class SafetensorsSource:
    """The tensors of a folder, in one file or in shards."""

    folder: Path
    files: Mapping[str, SafetensorsFile]
    """Tensor name -> the file that holds it."""

    @property
    def where(self) -> str:
        return str(self.folder)

    def names(self) -> Sequence[str]:
        return list(self.files)

    def info(self, name: str) -> WeightInfo:
        tensor = self._file(name).tensors[name]
        return WeightInfo(name, tensor.dtype, tensor.shape)

    def read(self, name: str) -> NDArray[Any]:
        """Floats as float32; integers and booleans as they are."""
        tensor, raw = self._raw(name)
        if tensor.dtype in FLOAT_BYTES:
            return as_float32(raw, tensor.dtype, tensor.shape)
        if tensor.dtype in _SMALL:
            raise FrontendError(
                f"{self.where}: {name}: expected scales that config.json tells of "
                f"(quantization_config), got {tensor.dtype} alone"
            )
        return self.stored(name)

    def stored(self, name: str) -> NDArray[Any]:
        """Numbers as they lie in the file: bf16 and floats of 8 bits as their bits."""
        tensor, raw = self._raw(name)
        if tensor.start % tensor.numpy.itemsize or not raw.flags.aligned:
            raw = raw.copy()
        return raw.view(tensor.numpy).reshape(tensor.shape)

    def _raw(self, name: str) -> tuple[_Tensor, NDArray[np.uint8]]:
        file = self._file(name)
        tensor = file.tensors[name]
        return tensor, file.data[tensor.start : tensor.end]

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self.files:
            raise FrontendError(f"{self.where}: expected a tensor {name}, got none of that name")
        return self.files[name]


def open_weights(folder: Path) -> SafetensorsSource:
    """model.safetensors, or the shards that model.safetensors.index.json lists."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _open_shards(folder, index)
    path = folder / "model.safetensors"
    if not path.is_file():
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pth", ".gguf"))
        raise FrontendError(
            f"{folder}: expected model.safetensors or model.safetensors.index.json, "
            f"got {', '.join(others) or 'no weights'} "
            "(save the model with save_pretrained, or give a .gguf file by its own path)"
        )
    file = SafetensorsFile.open(path)
    return SafetensorsSource(folder, dict.fromkeys(file.tensors, file))


def _open_shards(folder: Path, index: Path) -> SafetensorsSource:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
        raise FrontendError(f"{index}: expected a weight_map of names to files, got none")
    names = sorted(set(places.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise FrontendError(f"{index}: expected file names, got {', '.join(outside)}")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise FrontendError(
            f"{folder}: expected {len(names)} shards, got no {', '.join(missing)} "
            "(the download is incomplete)"
        )
    shards = {name: SafetensorsFile.open(folder / name) for name in names}
    if absent := [name for name, place in places.items() if name not in shards[place].tensors]:
        raise _damaged(
            index, f"expected every tensor in its shard, got none of {', '.join(absent)}"
        )
    return SafetensorsSource(folder, {name: shards[place] for name, place in places.items()})


def open_folder(folder: Path) -> ModelFiles:
    """A Hugging Face folder: config.json, safetensors, tokenizer files if any."""
    config = read_config(folder)
    stored = open_weights(folder)
    source: WeightSource = stored
    if settings := quantization_of(config, folder):
        source = read_quantized(stored, settings)
    else:
        _refuse_small(source)
    is_tied = bool(getattr(config, "tie_word_embeddings", False))
    if is_tied:
        _refuse_head(source)
    return ModelFiles(
        name=folder.resolve().name,
        config=config,
        source=tie_embedding(source, is_tied),
        tokenizer=tokenizer_from_folder(folder),
    )


def quantization_of(config: Any, folder: Path) -> Mapping[str, Any] | None:
    """How the checkpoint of a config is quantized, if it is: in the config, or as AutoGPTQ and
    ModelOpt wrote it, in a file of its own."""
    for key in ("quantization_config", "compression_config"):
        if settings := getattr(config, key, None):
            return dict(settings if isinstance(settings, Mapping) else settings.to_dict())
    if settings := read_json(folder / "quantize_config.json"):
        return {"quant_method": "gptq"} | settings
    settings = read_json(folder / "hf_quant_config.json").get("quantization")
    return {"quant_method": "modelopt", **settings} if isinstance(settings, dict) else None


def _refuse_head(source: WeightSource) -> None:
    """A head of its own numbers cannot be the embedding too."""
    head = "lm_head.weight"
    if head in source.names() and source.info(head).dtype not in FLOAT_BYTES:
        raise FrontendError(
            f"{source.where}: expected no quantized head, as the config ties it to the embedding "
            f"(tie_word_embeddings), got {head} of {source.info(head).dtype} (untie them in "
            "config.json if the head was quantized apart)"
        )


def _refuse_small(source: WeightSource) -> None:
    """Floats of 8 bits, and packed integers, mean nothing without their scales."""
    packed = (".qweight", ".weight_packed")
    names = source.names()
    small = [n for n in names if source.info(n).dtype in _SMALL or n.endswith(packed)]
    if small:
        raise FrontendError(
            f"{source.where}: expected a quantization_config in config.json that tells of scales, "
            f"got none, and {len(small)} tensors that need one, such as {small[0]}"
        )


def read_config(folder: Path) -> Any:
    """The transformers config of a folder, or in a JSON file."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    file = folder if folder.suffix == ".json" else folder / "config.json"
    if not file.is_file():
        raise FrontendError(
            f"{folder}: expected a Hugging Face folder, got one without config.json "
            "(give the folder that save_pretrained wrote, or a .gguf file)"
        )
    read_json(file)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        raise FrontendError(
            f"{folder}: expected a config that transformers knows, got: {_in_one_line(error)}"
        ) from error


def _in_one_line(error: Exception) -> str:
    """The first paragraph of a message, such as the one that ends with advice on pip."""
    return " ".join(str(error).split("\n\n")[0].split())
