"""Tiny random models compiled for this machine, and sequences stepped through a device by hand."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
import torch
from sglk import knobs
from sglk.targets.artifact import Artifact
from sglk.targets.device import Executable, StepBatch
from sglk.targets.registry import open_device
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Few distinct widths: matrices of one shape share a compiled kernel."""
WINDOW: dict[str, Any] = {"sliding_window": 40}
"""Longer than a page and no multiple of it."""
CHANGES: dict[str, dict[str, Any]] = {
    "mistral": WINDOW,
    "qwen2": {"tie_word_embeddings": True},
    "gemma2": WINDOW | {"query_pre_attn_scalar": 16},
    "gemma3_text": WINDOW
    | {"query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "granite": {
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.7,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
    },
    "smollm3": {"no_rope_layers": [1, 0]},
    "gpt2": {"n_positions": 256},
}
"""What a model type needs besides `SIZES`, or what shows more of it."""
NUM_PAGES = 80
MAX_TOKENS = 128
Logits = np.ndarray


def random_model(model_type: str) -> PreTrainedModel:
    """Weights large enough that every path matters; norms and biases random too."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **SIZES | CHANGES.get(model_type, {}))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.2 if parameter.dim() > 1 else parameter + noise * 0.2)
    return model.eval()  # type: ignore[no-any-return, no-untyped-call]


def logits_of(model: PreTrainedModel, ids: Sequence[int]) -> Logits:
    """transformers' f32 logits of every position, [len(ids), V]."""
    with torch.inference_mode():
        output: Any = model(input_ids=torch.tensor([list(ids)]), use_cache=False)
    return np.asarray(output.logits[0].numpy())


def random_ids(count: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, 128, count)]


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """The model with its matrices rounded to bf16, still computing in f32."""
    copy_of = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copy_of.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.to(torch.bfloat16).float())
    return copy_of


@dataclass
class Stepper:
    """Sequences on pages of their own; each call of `step` is one step of the device."""

    executable: Executable
    pages: dict[str, list[int]] = field(default_factory=dict)
    free: list[int] = field(default_factory=lambda: list(range(1, NUM_PAGES)))

    def step(self, *chunks: tuple[str, Sequence[int], int]) -> list[Logits]:
        """Run (sequence, tokens, position of the first) side by side: logits of every token."""
        spans = [np.arange(start, start + len(ids), dtype=np.int32) for _, ids, start in chunks]
        tables = [self._table(name, start + len(ids) - 1) for name, ids, start in chunks]
        page = self.executable.page_size
        slots = [t[s // page] * page + s % page for t, s in zip(tables, spans, strict=True)]
        starts = np.cumsum([0, *map(len, spans)])
        table = np.zeros((len(chunks), max(map(len, tables))), np.int32)
        for row, own in zip(table, tables, strict=True):
            row[: len(own)] = own
        batch = StepBatch(
            token_ids=np.concatenate([np.asarray(ids, np.int32) for _, ids, _ in chunks]),
            positions=np.concatenate(spans),
            slots=np.concatenate(slots).astype(np.int32),
            query_start=starts.astype(np.int32),
            seq_lens=np.array([s[-1] + 1 for s in spans], np.int32),
            page_table=table,
            logit_rows=np.arange(starts[-1], dtype=np.int32),
        )
        logits = np.array(self.executable.step(batch))
        return np.split(logits, starts[1:-1])

    def _table(self, name: str, last: int) -> np.ndarray:
        """The pages of a sequence up to a position, taken in no particular order."""
        own = self.pages.setdefault(name, [])
        while len(own) <= last // self.executable.page_size:
            own.append(self.free.pop(len(self.free) // 2))
        return np.array(own, np.int32)


@contextmanager
def stepping(path: Path, threads: int = 2) -> Iterator[Stepper]:
    """A fresh device with the artifact."""
    with Artifact.open(path) as artifact:
        executable = open_device("cpu").load(
            artifact, num_pages=NUM_PAGES, max_tokens=MAX_TOKENS, num_threads=threads
        )
        yield Stepper(executable)
        executable.close()


class Lab:
    """What the tests of this folder use; `compile` keeps each artifact for the session."""

    MAX_TOKENS = MAX_TOKENS
    stepping = staticmethod(stepping)
    logits_of = staticmethod(logits_of)
    random_ids = staticmethod(random_ids)
    rounded = staticmethod(rounded)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[PreTrainedModel, Path]] = {}

    def compile(
        self, model_type: str, dtype: str = "fp32", kv_dtype: str | None = None
    ) -> tuple[PreTrainedModel, Path]:
        """A random model, saved as a Hugging Face folder, and its artifact."""
        key = f"{model_type}-{dtype}-{kv_dtype}"
        if key not in self._made:
            model = random_model(model_type)
            folder = self._folder / key
            model.save_pretrained(folder)
            path = folder / "model.sglk"
            options = {"dtype": dtype, "kv_dtype": kv_dtype, "quant": "none"}
            sglk.compile(folder, output=path, selftest=False, **options)
            self._made[key] = (model, path)
        return self._made[key]


@pytest.fixture(scope="session")
def smollm2_artifact(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 compiled with the defaults: stored block types kept."""
    path = tmp_path_factory.mktemp("smollm2") / "keep.sglk"
    with knobs.override(verify=False):  # the interpreter on 135 M weights takes minutes
        sglk.compile(smollm2_gguf, target="cpu", output=path)
    return path


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("models"))
