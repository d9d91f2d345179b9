"""Run an artifact's self-test vectors on this machine and compare with the logits it was made with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ..errors import ArtifactError
from ..targets.artifact import Artifact
from ..targets.device import StepBatch
from ..targets.registry import open_device

INPUTS = (
    "token_ids",
    "positions",
    "slots",
    "query_start",
    "seq_lens",
    "page_table",
    "logit_rows",
)


@dataclass(frozen=True)
class CaseResult:
    """One step: the L2 error of its logits relative to the reference, and the bound it must keep."""

    name: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


def run_selftest(
    artifact: Artifact, *, device: str | None = None, num_threads: int | None = None
) -> Iterator[CaseResult]:
    """Run the cases in order: they share one cache. An artifact without vectors is refused."""
    if "selftest.json" not in artifact.names:
        raise ArtifactError(
            f"{artifact.path}: has no self-test vectors (compile it again with them)"
        )
    record = json.loads(artifact.read("selftest.json"))
    name = device or target_name(artifact)
    tokens = max(len(case["inputs"]["token_ids"]) for case in record["cases"])
    executable = open_device(name).load(
        artifact, num_pages=record["num_pages"], max_tokens=tokens, num_threads=num_threads
    )
    try:
        for case in record["cases"]:
            logits = executable.step(_batch(case["inputs"]))
            error = relative_error(logits, _wanted(artifact, case))
            yield CaseResult(case["name"], error, float(record["tolerance"]))
    finally:
        executable.close()


def target_name(artifact: Artifact) -> str:
    """The target an artifact was compiled for."""
    return str(cast(dict[str, object], artifact.manifest["target"])["name"])


def _batch(inputs: dict[str, Any]) -> StepBatch:
    return StepBatch(**{name: np.array(inputs[name], np.int32) for name in INPUTS})


def _wanted(artifact: Artifact, case: dict[str, Any]) -> np.ndarray:
    raw = np.frombuffer(artifact.read(case["logits"]), "<f4")
    return raw.reshape(case["shape"])


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """|got - wanted| / |wanted| in L2 over the vocabulary, the worst row; NaN counts as infinite."""
    difference = np.linalg.norm(got.astype(np.float64) - wanted, axis=-1)
    error = float(np.max(difference / np.maximum(np.linalg.norm(wanted, axis=-1), 1e-30)))
    return error if np.isfinite(error) else float("inf")
