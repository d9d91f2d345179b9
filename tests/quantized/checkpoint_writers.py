"""Tiny checkpoints in the formats of AWQ, GPTQ, compressed-tensors and FP8, written bit by bit.

Each writer makes random integers, scales and zero points for a layer, the tensors that the format
stores of them, and the weight by the format's own formula in f32. Slow loops, and on purpose not
one line of the code under test.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

Tensors = dict[str, torch.Tensor]
SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SPREAD = 0.5
"""Weights reach about this far, so that every layer shows in the logits."""


@dataclass(frozen=True)
class Format:
    """How one kind of checkpoint holds a layer [N, K]: `write` gives the weight and the tensors."""

    settings: dict[str, Any]
    write: Callable[[int, int, torch.Generator], tuple[torch.Tensor, Tensors]]
    bits: float
    """Stored bits of a quantized weight, about."""
    plain: tuple[str, ...] = ("lm_head",)
    """Modules that stay as they are."""


def _words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Integers [R, C] into i32 [R, C * bits / 32]: the first in the lowest bits."""
    per_word = 32 // bits
    words = torch.zeros(values.shape[0], values.shape[1] // per_word, dtype=torch.int64)
    for i in range(per_word):
        words |= values[:, i::per_word].long() << (bits * i)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _awq_words(values: torch.Tensor) -> torch.Tensor:
    """The same with every eight in AWQ's order."""
    eights = values.reshape(values.shape[0], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    return _words(eights.reshape(values.shape), 4)


def _integers(n: int, k: int, bits: int, rng: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 2**bits, (n, k), generator=rng)


def _scales(n: int, groups: int, bits: int, rng: torch.Generator, kind: Any) -> torch.Tensor:
    size = SPREAD / 2 ** (bits - 1)
    scales: torch.Tensor = ((0.5 + torch.rand(n, groups, generator=rng)) * size).to(kind)
    return scales


def _zeros(n: int, groups: int, bits: int, rng: torch.Generator) -> torch.Tensor:
    return torch.randint(2 ** (bits - 1) - 3, 2 ** (bits - 1) + 4, (n, groups), generator=rng)


def _values(q: torch.Tensor, zero: Any, scale: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """(q - zero) * scale in f32; group[k] is the group of column k."""
    zeros = zero[:, group] if isinstance(zero, torch.Tensor) else zero
    return (q - zeros).float() * scale.float()[:, group]


def awq(n: int, k: int, rng: torch.Generator, size: int = 64) -> tuple[torch.Tensor, Tensors]:
    groups = k // size
    q, zero = _integers(n, k, 4, rng), _zeros(n, groups, 4, rng)
    scale = _scales(n, groups, 4, rng, torch.float16)
    stored = {
        "qweight": _awq_words(q.T),
        "qzeros": _awq_words(zero.T),
        "scales": scale.T.contiguous(),
    }
    return _values(q, zero, scale, torch.arange(k) // size), stored


def gptq(
    n: int,
    k: int,
    rng: torch.Generator,
    bits: int = 4,
    size: int = 64,
    symmetric: bool = False,
    shuffled: bool = False,
    version: int = 1,
) -> tuple[torch.Tensor, Tensors]:
    size = size if size > 0 else k
    groups = k // size
    q = _integers(n, k, bits, rng)
    zero = torch.full((n, groups), 2 ** (bits - 1))
    if not symmetric:
        zero = _zeros(n, groups, bits, rng)
        zero[0, 0] = 0  # stored as all ones in version 1
    scale = _scales(n, groups, bits, rng, torch.float16)
    index = torch.arange(k) // size
    if shuffled:
        index = index[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
    stored = {
        "qweight": _words(q, bits).T.contiguous(),
        "qzeros": _words((zero.T - int(version == 1)) % 2**bits, bits),
        "scales": scale.T.contiguous(),
        "g_idx": index.to(torch.int32),
    }
    return _values(q, zero, scale, index), stored


def packed(
    n: int,
    k: int,
    rng: torch.Generator,
    bits: int = 4,
    size: int = 64,
    symmetric: bool = True,
    kind: torch.dtype = torch.bfloat16,
    shuffled: bool = False,
) -> tuple[torch.Tensor, Tensors]:
    """compressed-tensors, pack-quantized."""
    groups = k // size
    q, scale = _integers(n, k, bits, rng), _scales(n, groups, bits, rng, kind)
    index = torch.arange(k) // size
    stored = {"weight_scale": scale, "weight_shape": torch.tensor([n, k])}
    zero: Any = 2 ** (bits - 1)
    if not symmetric:
        zero = _zeros(n, groups, bits, rng)
        stored["weight_zero_point"] = _words(zero.T, bits).T.contiguous()
    if shuffled:
        index = index[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
        stored["weight_g_idx"] = index.to(torch.int32)
    stored["weight_packed"] = _words(q, bits)
    return _values(q, zero, scale, index), stored


def int8(
    n: int, k: int, rng: torch.Generator, symmetric: bool = True
) -> tuple[torch.Tensor, Tensors]:
    """compressed-tensors, int-quantized per channel."""
    q = torch.randint(-128, 128, (n, k), generator=rng)
    scale = _scales(n, 1, 8, rng, torch.bfloat16)
    zero = torch.zeros(n, 1, dtype=torch.long)
    stored = {"weight": q.to(torch.int8), "weight_scale": scale}
    if not symmetric:
        zero = torch.randint(-5, 6, (n, 1), generator=rng)
        stored["weight_zero_point"] = zero.to(torch.int8)
    return _values(q, zero, scale, torch.zeros(k, dtype=torch.long)), stored


def _floats(n: int, k: int, rng: torch.Generator) -> torch.Tensor:
    return torch.randn(n, k, generator=rng).mul(64).clamp(-448, 448).to(torch.float8_e4m3fn)


def fp8(
    n: int,
    k: int,
    rng: torch.Generator,
    block: tuple[int, int] | None = None,
    per_channel: bool = False,
    name: str = "weight_scale",
    kind: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, Tensors]:
    """One scale, one for each output, or one for each block."""
    weight = _floats(n, k, rng)
    rows, columns = block or ((1, k) if per_channel else (n, k))
    shape = -(-n // rows), -(-k // columns)
    exponents = torch.randint(-12, -9, shape, generator=rng).float()
    smooth = (1 + torch.rand(shape, generator=rng)) * 2.0**-11
    scale = (2.0**exponents if kind == torch.float8_e8m0fnu else smooth).to(kind)
    wide = scale.float().repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
    stored = {"weight": weight, name: scale if block or per_channel else scale.reshape(())}
    return weight.float() * wide, stored


def weights_args(**more: Any) -> dict[str, Any]:
    """``quantization_config`` of compressed-tensors for all linears but the head."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"} | more
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


def write_checkpoint(
    folder: Path,
    kind: Format,
    *,
    seed: int = 0,
    shard: bool = False,
    model_type: str = "llama",
    **changes: Any,
) -> PreTrainedModel:
    """A random model in ``folder`` as the format has it; the model with the same values in f32."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **SIZES | changes)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation="eager"
    )
    rng = torch.Generator().manual_seed(seed + 1)
    tensors: Tensors = {}
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=rng) * 0.2
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and not name.endswith(kind.plain):
                n, k = module.weight.shape
                weight, stored = kind.write(n, k, rng)
                module.weight.copy_(weight)
                tensors |= {f"{name}.{part}": tensor for part, tensor in stored.items()}
                tensors.setdefault(f"{name}.weight", torch.empty(0))
    state = {n: t for n, t in model.state_dict().items() if n not in tensors}
    tensors = {n: t for n, t in tensors.items() if t.numel()} | state
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    _save(folder, {n: t.clone().contiguous() for n, t in tensors.items()}, shard)
    text = copy.deepcopy(config)
    text.architectures = [type(model).__name__]
    settings = json.loads(text.to_json_string(use_diff=False)) | {
        "quantization_config": kind.settings
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return model.eval()  # type: ignore[no-any-return, no-untyped-call]


def _save(folder: Path, tensors: Tensors, shard: bool) -> None:
    folder.mkdir(parents=True)
    if not shard:
        save_file(tensors, folder / "model.safetensors")
        return
    names = sorted(tensors)
    places = {name: f"model-{1 + (i % 2)}-of-2.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({n: tensors[n] for n in names if places[n] == file}, folder / file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
