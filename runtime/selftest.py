"""Run an artifact's self-test vectors here and compare with the results it was made with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ..errors import ArtifactError
from ..targets.artifact import Artifact
from ..targets.artifact.schema import as_list, as_record, load_json
from ..targets.device import Executable, StepBatch, slots_of
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
SLOTS = "state_slots"
"""One more input of models with states beside the pages."""


@dataclass(frozen=True)
class CaseResult:
    """One case: the L2 error of its results relative to the reference, and its bound."""

    name: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


def run_selftest(
    artifact: Artifact,
    *,
    device: str | None = None,
    num_threads: int | None = None,
    executable: Executable | None = None,
) -> Iterator[CaseResult]:
    """Run the cases in order: they share one cache. An artifact without vectors is refused.

    They run on ``executable`` (and write to its first pages) if one is given that is large enough,
    else on one of their own.
    """
    record = _record(artifact)
    entry = artifact.entries[0]
    run = _run_step if entry == "step" else _run_forward
    sizes = [len(case["inputs"].get("token_ids", [0])) for case in record["cases"]]
    lent = executable
    slots = _num_slots(record)
    if lent is None or lent.num_pages < record["num_pages"] or lent.max_tokens < max(sizes):
        lent = None
    if lent is not None and slots.get("num_slots", 0) > slots_of(lent):
        lent = None
    executable = lent or open_device(device or target_name(artifact)).load(
        artifact,
        num_pages=record["num_pages"],
        max_tokens=max(sizes),
        num_threads=num_threads,
        **slots,
    )
    try:
        for case in record["cases"]:
            wanted = {n: _array(artifact, each) for n, each in case["outputs"].items()}
            got = run(artifact, executable, case)
            error = max(relative_error(got[name], wanted[name]) for name in wanted)
            yield CaseResult(case["name"], error, float(record["tolerance"]))
    finally:
        if lent is None:
            executable.close()


def stated_tolerance(artifact: Artifact) -> float:
    """What the compiler allows the logits of this artifact to be off, relative L2."""
    return float(_record(artifact)["tolerance"])


def _record(artifact: Artifact) -> dict[str, Any]:
    """The vectors, as this version writes them."""
    if "selftest.json" not in artifact.names:
        raise ArtifactError(
            f"{artifact.path}: has no self-test vectors (compile it again with them)"
        )
    where = f"{artifact.path}: selftest.json"
    found = load_json(where, artifact.read("selftest.json"))
    record = as_record(where, found, ("num_pages", "tolerance", "cases"), None)
    for case in as_list(f"{where}: cases", record["cases"]):
        as_record(f"{where}: case", case, ("name", "inputs", "outputs"), None)
    return record


def _num_slots(record: dict[str, Any]) -> dict[str, int]:
    """What a device is asked for beside pages: slots up to the highest in use, if any is."""
    used = [max(case["inputs"][SLOTS]) for case in record["cases"] if SLOTS in case["inputs"]]
    return {"num_slots": 1 + max(used)} if used else {}


def _run_step(
    artifact: Artifact, executable: Executable, case: dict[str, Any]
) -> dict[str, np.ndarray]:
    names = (*INPUTS, SLOTS) if SLOTS in case["inputs"] else INPUTS
    inputs = {name: np.array(case["inputs"][name], np.int32) for name in names}
    return {"logits": np.asarray(executable.step(StepBatch(**inputs)))}


def _run_forward(
    artifact: Artifact, executable: Executable, case: dict[str, Any]
) -> dict[str, np.ndarray]:
    inputs = {name: _array(artifact, each) for name, each in case["inputs"].items()}
    return executable.run(artifact.entries[0], inputs)


def target_name(artifact: Artifact) -> str:
    """The target an artifact was compiled for."""
    return str(cast(dict[str, object], artifact.manifest["target"])["name"])


def _array(artifact: Artifact, record: dict[str, Any]) -> np.ndarray:
    raw = np.frombuffer(artifact.read(record["member"]), np.dtype(record["dtype"]))
    return raw.reshape(record["shape"])


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """|got - wanted| / |wanted| in L2 over the last axis, the worst row; NaN counts as infinite."""
    difference = np.linalg.norm(got.astype(np.float64) - wanted, axis=-1)
    error = float(np.max(difference / np.maximum(np.linalg.norm(wanted, axis=-1), 1e-30)))
    return error if np.isfinite(error) else float("inf")
