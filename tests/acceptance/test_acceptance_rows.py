"""SmolLM2 on other rows of the operator table: without kernels written by hand, with bf16.

Fewer prompts than with the defaults: what is asked is that every set of rows gives the model's
logits and the same tokens for any batch and chunk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
from sglk import knobs
from sglk.targets.artifact import Artifact

pytestmark = pytest.mark.slow
REFERENCE = json.loads(Path(__file__).with_name("smollm2_reference.json").read_text())
ERROR = {"f32": 1e-2, "bf16": 3e-2, "int8": 1e-1}
"""Relative L2 error of the logits of a prompt's last token."""
MODES = [("f32", False), ("bf16", False), ("bf16", True), ("int8", False), ("int8", True)]


@pytest.fixture(scope="module", params=MODES, ids=lambda m: f"{m[0]}-{'c++' if m[1] else 'tilec'}")
def mode(
    request: pytest.FixtureRequest, smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    activations, handwritten = request.param
    path = tmp_path_factory.mktemp("rows") / "model.sglk"
    options = {"activations": activations, "handwritten": handwritten, "selftest": False}
    with knobs.override(verify=False):  # the interpreter on 135 M weights takes minutes
        sglk.compile(smollm2_gguf, target="cpu", output=path, **options)
    with Artifact.open(path) as artifact:
        rows = json.loads(bytes(artifact.read("report.json")))["rows"]
    by_hand = [r["row"] for r in rows if r["row"].startswith(("c++", "native"))]
    assert bool(by_hand) == handwritten, by_hand
    return activations, path


def test_logits_are_within_the_bound(mode: tuple[str, Path], lab: Any) -> None:
    activations, path = mode
    with lab.stepping(path) as stepper:
        for wanted in REFERENCE[:3]:
            ids, size = wanted["ids"], lab.MAX_TOKENS
            for start in range(0, len(ids), size):
                chunk = (wanted["prompt"], ids[start : start + size], start)
                (logits,) = stepper.step(chunk)
            found, reference = logits[-1][wanted["columns"]], np.array(wanted["logits"])
            error = np.linalg.norm(found - reference) / np.linalg.norm(reference)
            assert error <= ERROR[activations], f"{wanted['prompt']}: {error:.1e}"


def test_batches_and_chunks_change_nothing(mode: tuple[str, Path]) -> None:
    prompts = [each["ids"][:40] for each in REFERENCE] * 3
    new = {"max_tokens": 6, "ignore_eos": True, "logprobs": 2}
    with sglk.load(mode[1], prefix_cache=False) as llm:
        alone = [llm.generate([prompt], **new)[0] for prompt in prompts[: len(REFERENCE)]] * 3
        together = llm.generate(prompts, **new)
    with sglk.load(mode[1], max_step_tokens=23) as llm:
        chunked = llm.generate(prompts, **new)
    for found in (together, chunked):
        assert [a.token_ids for a in found] == [a.token_ids for a in alone]
        assert [a.logprobs for a in found] == [a.logprobs for a in alone]
