"""Gemma 3 270M from its Q4_K_M GGUF: transformers' tokens and logits, on real weights.

`gemma3_reference.json` is what transformers computes in fp32 on the dequantized weights, made by

    python bench/fidelity.py MODEL.gguf --prompts 5 --new 24 --only keep --save FILE
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
from sglk import knobs

pytestmark = pytest.mark.slow
REFERENCE = json.loads(Path(__file__).with_name("gemma3_reference.json").read_text())
ERROR = 1e-2
"""Relative L2 error of the logits of a prompt's last token."""


@pytest.fixture(scope="module")
def artifact(gemma3_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma3") / "keep.sglk"
    with knobs.override(verify=False):  # the interpreter on 270 M weights takes minutes
        sglk.compile(gemma3_gguf, target="cpu", output=path, selftest=False)
    return path


def test_logits_and_greedy_ids_equal_those_of_transformers(artifact: Path, lab: Any) -> None:
    with lab.stepping(artifact) as stepper:
        for wanted in REFERENCE:
            prompt, ids = wanted["prompt"], wanted["ids"]
            for start in range(0, len(ids), lab.MAX_TOKENS):
                (logits,) = stepper.step((prompt, ids[start : start + lab.MAX_TOKENS], start))
            found, reference = logits[-1][wanted["columns"]], np.array(wanted["logits"])
            error = np.linalg.norm(found - reference) / np.linalg.norm(reference)
            assert error <= ERROR, f"{prompt}: {error:.1e}"
            greedy = [int(logits[-1].argmax())]
            for position in range(len(ids), len(ids) + len(wanted["greedy"]) - 1):
                (logits,) = stepper.step((prompt, greedy[-1:], position))
                greedy.append(int(logits[-1].argmax()))
            assert greedy == wanted["greedy"], prompt
