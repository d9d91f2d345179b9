"""What transformers computes in fp32 on the dequantized weights of a GGUF file, kept between runs.

The weights are read by transformers, not by sglk, so that a mistake of our reader shows too.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sglk.bench.fidelity_rows import COLUMNS, Rows, rows_of

CHUNK = 256
"""Positions whose logits are held at a time: 50 MB at a vocabulary of 49,152."""


class Reference:
    """Greedy continuation and logits of every position, one prompt at a time."""

    def __init__(self, model: Path, folder: Path | None = None) -> None:
        self.path = model
        with model.open("rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self.folder = (folder or _cache_folder()) / self.sha256[:16]
        self._model: Any = None

    def run(self, prompt: Sequence[int], new: int) -> Rows:
        """Logits rows of ``prompt`` and of its first ``new - 1`` greedy tokens."""
        file, positions = self.folder / f"{_key(prompt)}.npz", len(prompt) + new - 1
        if file.is_file():
            with np.load(file) as stored:
                rows = Rows(**stored)
            if len(rows.top) >= positions:
                return rows.first(positions)
        rows = self._compute(prompt, new)
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.npz")
        np.savez(partial, **vars(rows))
        partial.replace(file)
        return rows

    def _compute(self, prompt: Sequence[int], new: int) -> Rows:
        import torch

        if self._model is None:
            self._model = load_dense(self.path)
        with torch.inference_mode():
            return rows_of(self._logits(list(prompt), new), last=len(prompt) - 1)

    def _logits(self, prompt: list[int], new: int) -> Iterator[np.ndarray]:
        import torch

        parameters = inspect.signature(type(self._model).forward).parameters
        name = "cache" if "cache" in parameters else "past_key_values"  # the older name
        output = self._model.model(torch.tensor([prompt]), use_cache=True)
        hidden, cache = output.last_hidden_state[0], {name: output[name]}
        for start in range(0, len(prompt), CHUNK):
            logits = self._model.lm_head(hidden[start : start + CHUNK]).numpy()
            yield logits
        for _ in range(new - 1):
            token = int(logits[-1].argmax())
            output = self._model(torch.tensor([[token]]), use_cache=True, **cache)
            logits = output.logits[0].numpy()
            yield logits


def _key(prompt: Sequence[int]) -> str:
    import transformers

    text = f"{transformers.__version__} {COLUMNS} {list(prompt)}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def load_dense(path: Path) -> Any:
    """The transformers model of a GGUF file, every weight dequantized to fp32."""
    import torch
    import transformers
    from transformers import modeling_gguf_pytorch_utils

    auto: Any = transformers.AutoModelForCausalLM
    gguf: Any = modeling_gguf_pytorch_utils
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):
        skeleton = auto.from_config(config)
    loaded = gguf.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=skeleton)
    model = auto.from_config(config, dtype=torch.float32)
    missing, unexpected = model.load_state_dict(loaded["tensors"], strict=False)
    model.tie_weights()
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{path}: transformers finds {unexpected} and misses {missing}")
    return model.eval()


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "sglk" / "fidelity"
