"""SmolLM2 itself on the emulated Kunlun: transformers' answers, the plan's counts, no violation.

They are the CPU target's answers too (`test_acceptance_smollm2`). `bench/kunlun_acceptance.py` is
the long form of this: more and longer answers, bf16, figures of speed.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import sglk
from sglk import knobs
from sglk.bench import kunlun_acceptance as acceptance
from sglk.errors import SglkError

pytestmark = pytest.mark.slow
REFERENCE = json.loads(Path(__file__).with_name("smollm2_reference.json").read_text())[:5]
FEW = REFERENCE[:3]
"""Of 1, 19 and 63 tokens; their answers of 16 cross the end of a page."""


def compiled(model: Path, folder: Path, dtype: str) -> Path:
    with knobs.override(verify=False):  # the interpreter on 135 M weights takes minutes
        return acceptance.compile_for_kunlun(model, folder, dtype, selftest=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kunlun-smollm2")


@pytest.fixture(scope="module")
def fp32(smollm2_gguf: Path, folder: Path) -> Path:
    return compiled(smollm2_gguf, folder, "fp32")


def test_greedy_ids_are_those_of_transformers(fp32: Path) -> None:
    prompts, wanted = [e["ids"] for e in FEW], [e["greedy"] for e in FEW]
    assert acceptance.greedy(fp32, "emulator", prompts, len(wanted[0])) == wanted
    assert acceptance.broken_limits(fp32) == []


def test_fp16_agrees_under_teacher_forcing(
    smollm2_gguf: Path, smollm2_artifact: Path, folder: Path
) -> None:
    path = compiled(smollm2_gguf, folder, "fp16")
    texts = [each["ids"] + each["greedy"] for each in REFERENCE]
    agreed = acceptance.agreement(path, "emulator", smollm2_artifact, texts)
    assert agreed.share >= acceptance.AGREEMENT["fp16"], agreed
    assert acceptance.broken_limits(path) == []
    path.unlink()


def test_counts_are_those_of_the_plan(fp32: Path) -> None:
    counts, wrong = acceptance.differing_counts(fp32)
    assert wrong == []
    assert counts > 150


def test_a_changed_kernel_is_refused_or_changes_the_answer(fp32: Path) -> None:
    plain = acceptance.first_logits(fp32, {})
    other = acceptance.first_logits(fp32, acceptance.swapped(fp32))
    assert np.linalg.norm(plain - other) > 0.1 * np.linalg.norm(plain)
    with pytest.raises(SglkError, match=r"NOXPUFUNC.*digest"):
        acceptance.first_logits(fp32, acceptance.one_byte_off(fp32))


def test_it_works_without_the_cpu_target(fp32: Path, folder: Path, tiny_llama_folder: Path) -> None:
    """The real model runs, and another is compiled, where `targets/cpu` does not exist."""
    tree = acceptance.tree_without_cpu(folder)
    found = acceptance.alone(tree, fp32, [each["ids"] for each in FEW[1:]], 4)
    assert found == [each["greedy"][:4] for each in FEW[1:]]
    tiny = folder / "tiny.sglk"
    there = acceptance.alone(tree, tiny, [[65, 66]], 4, str(tiny_llama_folder))
    with sglk.load(tiny, device="emulator") as llm:
        assert [llm.generate([65, 66], max_tokens=4, ignore_eos=True).token_ids] == there
