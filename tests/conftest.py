"""Fixtures that several rooms share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import tokenizers
from numpy.typing import NDArray
from safetensors.numpy import save_file

# Every pass is checked, in this process and in those that tests start. A test that compiles a whole
# model says ``knobs.override(verify=False)``: the interpreter would take minutes.
os.environ.setdefault("SGLK_VERIFY", "1")

# Shared machines stall, so no deadline; the same examples every time, so a failure is the code's.
hypothesis.settings.register_profile("sglk", deadline=None, derandomize=True)
hypothesis.settings.load_profile("sglk")

ROOT = Path(__file__).resolve().parent.parent


def _fetched(name: str) -> Path:
    """A real model's file; `examples/fetch_model.py` says where it comes from."""
    command = [sys.executable, str(ROOT / "examples" / "fetch_model.py"), name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The SmolLM2-135M-Instruct GGUF."""
    return _fetched("smollm2")


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    """The Gemma 3 270M GGUF."""
    return _fetched("gemma3")


LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 258,
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
"""Ids 256, 257, 258; the ids below are the bytes."""
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_llama_weights() -> dict[str, NDArray[np.float32]]:
    """Random weights for `LLAMA`, by Hugging Face names; the same ones every time."""
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (272, 64), "model.norm": (64,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{name}_proj": (64, 64) for name in "qo"}
        shapes |= {f"{prefix}.self_attn.{name}_proj": (32, 64) for name in "kv"}
        shapes |= {f"{prefix}.mlp.{name}_proj": (96, 64) for name in ("gate", "up")}
        shapes[f"{prefix}.mlp.down_proj"] = (64, 96)
        shapes |= {f"{prefix}.{n}_layernorm": (64,) for n in ("input", "post_attention")}
    return {
        f"{name}.weight": rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_tiny_llama(folder: Path) -> Path:
    """A Llama of two layers as a Hugging Face folder, about 500 kB, with a tokenizer of bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {
        c: i for i, c in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    }
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": CHAT, "eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(LLAMA))
    save_file(tiny_llama_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def tiny_llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers as a Hugging Face folder; do not change it."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_artifact(tiny_llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_llama_folder` compiled for this machine's CPU; do not change it."""
    import sglk

    path = tmp_path_factory.mktemp("artifacts") / "tiny.sglk"
    sglk.compile(tiny_llama_folder, target="cpu", output=path)
    return path
