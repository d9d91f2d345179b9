"""Quantized checkpoints compiled for the CPU: transformers' logits, and artifacts as small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
import torch
from sglk.targets.artifact import Artifact
from sglk.targets.device import StepBatch
from sglk.targets.registry import open_device

ERROR = 1e-4
"""Relative L2 error of the worst row of logits."""


def logits_of(model: Any, ids: Sequence[int]) -> np.ndarray:
    with torch.inference_mode():
        output: Any = model(input_ids=torch.tensor([list(ids)]), use_cache=False)
    return np.asarray(output.logits[0].numpy())


def steps_of(path: Path, ids: Sequence[int], chunk: int) -> np.ndarray:
    """Logits of every token, so many at a time."""
    found = []
    with Artifact.open(path) as artifact:
        device = open_device("cpu").load(artifact, num_pages=8, max_tokens=64, num_threads=2)
        for start in range(0, len(ids), chunk):
            part = np.asarray(ids[start : start + chunk], np.int32)
            places = np.arange(start, start + len(part), dtype=np.int32)
            batch = StepBatch(
                token_ids=part,
                positions=places,
                slots=places + device.page_size,
                query_start=np.array([0, len(part)], np.int32),
                seq_lens=np.array([start + len(part)], np.int32),
                page_table=np.arange(1, 4, dtype=np.int32)[None],
                logit_rows=np.arange(len(part), dtype=np.int32),
            )
            found.append(np.array(device.step(batch)))
        device.close()
    return np.concatenate(found)


def worst(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.max(np.linalg.norm(got - wanted, axis=1) / np.linalg.norm(wanted, axis=1)))


def compiled(folder: Path, **options: Any) -> sglk.driver.Compiled:
    given = {"dtype": "fp32", "selftest": False} | options
    return sglk.compile(folder, output=folder / "m.sglk", **given)


EVERY = ("awq", "gptq-order", "int8", "fp8-blocks")
"""One for each element, sorted columns, and scales cut short; other forms run in the kernels' tests
and in the conformance kit, and `test_read_formats` has the values of all."""
IDS = [int(i) for i in np.random.default_rng(7).integers(3, 128, 40)]


@pytest.mark.parametrize("name", EVERY)
def test_a_checkpoint_gives_the_logits_of_its_values(
    writers: Any, formats: dict[str, Any], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "m"
    model = writers.write_checkpoint(folder, formats[name])
    made = compiled(folder)
    wanted = logits_of(model, IDS)
    for chunk in (40, 7, 1):
        assert worst(steps_of(made.path, IDS, chunk), wanted) <= ERROR
    llm = sglk.load(made.path)
    prompts = [IDS[:5], IDS[5:30]]
    found = llm.generate(prompts, max_tokens=12, ignore_eos=True)
    for prompt, answer in zip(prompts, found, strict=True):
        ids = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None
        )
        assert list(answer.token_ids) == ids[0, len(prompt) :].tolist()
    check_size(folder, made, formats[name])


def check_size(folder: Path, made: sglk.driver.Compiled, kind: Any) -> None:
    """What the report says, what the artifact holds, and what the checkpoint was."""
    weights = made.report["weights"]
    few = {name: form for name, form in weights["forms"].items() if name != "f32"}
    assert few and not weights["expanded"]
    layers = 2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 256
    stored = sum(form["bytes"] for form in few.values())
    assert stored * 8 / layers <= kind.bits
    checkpoint = (folder / "model.safetensors").stat().st_size
    with Artifact.open(made.path) as artifact:
        held = artifact.weight_bytes(artifact.weights)
    assert held <= 1.05 * checkpoint


def test_rounded_activations_take_forms_as_other_weights(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    """Integers are for block types; products with forms have bf16 instead."""
    folder = tmp_path / "m"
    model = writers.write_checkpoint(folder, formats["awq"])
    made = compiled(folder, activations="int8", dtype="bf16", kv_dtype="f32")
    assert "i4_g64_f16_z" in made.report["weights"]["forms"]
    assert worst(steps_of(made.path, IDS, 40), logits_of(model, IDS)) <= 0.1


def test_compiled_kernels_alone_are_enough(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    model = writers.write_checkpoint(folder, formats["awq"])
    made = compiled(folder, handwritten=False)
    assert worst(steps_of(made.path, IDS, 40), logits_of(model, IDS)) <= ERROR


def test_quant_none_makes_plain_weights(
    writers: Any, formats: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    model = writers.write_checkpoint(folder, formats["gptq-order"])
    made = compiled(folder, quant="none")
    assert set(made.report["weights"]["forms"]) == {"f32"}
    assert made.report["weights"]["expanded"] == {"i4_g64_f16_z to f32": 7}
    assert worst(steps_of(made.path, IDS, 40), logits_of(model, IDS)) <= ERROR
