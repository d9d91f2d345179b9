"""The reference of a fidelity run in a file: made where the model is, compared where a chip is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sglk.bench.fidelity_prompts import Prompt
from sglk.bench.fidelity_rows import Rows

SAMPLED = 8
"""Of the columns that are kept every so many go into the file: 20 prompts take 6 MB."""


def write_reference(path: Path, prompts: Sequence[Prompt], reference: Sequence[Rows]) -> None:
    """Prompts and what is kept of their logits."""
    arrays: dict[str, np.ndarray] = {"names": np.array([prompt.name for prompt in prompts])}
    for number, (prompt, rows) in enumerate(zip(prompts, reference, strict=True)):
        arrays[f"ids {number}"] = np.array(prompt.ids, np.int32)
        arrays |= {f"{part} {number}": array for part, array in vars(rows).items()}
        arrays[f"sample {number}"] = rows.sample[:, ::SAMPLED]
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_reference(path: Path) -> tuple[list[Prompt], list[Rows]]:
    """What `write_reference` wrote; samples have fewer columns than those of a run."""
    with np.load(path) as stored:
        names = stored["names"].tolist()
        prompts = [Prompt(n, tuple(stored[f"ids {i}"].tolist())) for i, n in enumerate(names)]
        parts = ("top", "gap", "sample", "last")
        rows = [Rows(*(stored[f"{part} {i}"] for part in parts)) for i in range(len(names))]
    return prompts, rows


def sampled_error(got: Rows, wanted: Rows) -> float:
    """Largest absolute difference of a logit in the sampled columns, over all positions."""
    width = wanted.sample.shape[1]
    step = -(-got.sample.shape[1] // width)
    return float(np.abs(got.sample[:, ::step] - wanted.sample).max())
