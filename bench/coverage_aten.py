"""How much of core ATen compiles and is right: `python bench/coverage_aten.py`.

Every op that torch tags as core, on torch's own sample inputs (OpInfo), as a module of one op:
captured, lowered to an `ir.Graph`, run, and compared with torch. With ``--compiled`` it is compiled
for the CPU and run from the artifact; without, the graph runs on the reference interpreter.

An op passes if every sample of every dtype does. A sample may be refused (by name, before any
work); one that runs and differs is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglk.bench.aten_list import ALWAYS, EXCLUDED, OPINFO_OF, OWN, core_names
from sglk.errors import SglkError
from sglk.frontend.torch_module import load_module
from sglk.ir.interpret import interpret

OVERWRITES = "reads and overwrites"
"""In the refusal of a sample that changes its own inputs."""
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 2e-2)}
"""Relative and absolute; graphs compute in f32, so bf16 is compared with torch on f32 copies."""


@dataclass
class Tally:
    """One op: samples by outcome, and the first reason of each kind."""

    passed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    training: int = 0
    """Samples left out since torch.export says that they overwrite an input: running statistics of
    training, tables that are renormalised."""

    @property
    def verdict(self) -> str:
        if self.wrong:
            return "wrong"
        if self.refused:
            return "part" if self.passed else "refused"
        if self.passed:
            return "pass"
        return "training" if self.training else "no sample"


class OneOp(torch.nn.Module):
    """``op(input, *args, **kwargs)`` with every tensor of the sample as an input of the module."""

    def __init__(self, op: Any, spec: Any) -> None:
        super().__init__()
        self.op, self.spec = op, spec

    def forward(self, *tensors: torch.Tensor) -> Any:
        """An op that takes no tensor gets one all the same, or there would be no input."""
        given = iter(tensors)
        leaves = [next(given) if leaf is torch.Tensor else leaf for leaf in self.spec.leaves]
        sample, args, kwargs = torch.utils._pytree.tree_unflatten(leaves, self.spec.tree)
        result = self.op(sample, *args, **kwargs)
        return tuple(result) if isinstance(result, tuple | list) else result


@dataclass
class Spec:
    leaves: list[Any]
    tree: Any


def samples(name: str, dtype: torch.dtype, most: int) -> Iterator[tuple[OneOp, list[torch.Tensor]]]:
    """Modules and their inputs, at most ``most``."""
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = OPINFO_OF.get(name, name)
    infos: list[Any] = [
        i for i in op_db if wanted in (i.name, i.aten_name) and i.supports_dtype(dtype, "cpu")
    ]
    for info in infos[:2]:
        torch.manual_seed(0)
        for count, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=False)):
            if count == most:
                break
            kwargs = {**ALWAYS.get(name, {}), **sample.kwargs}
            leaves, tree = torch.utils._pytree.tree_flatten((sample.input, sample.args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            kept = [torch.Tensor if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            yield OneOp(info.op, Spec(kept, tree)), tensors or [torch.zeros(1)]
    if name in OWN and dtype.is_floating_point:
        op, shape, args = OWN[name]
        leaves, tree = torch.utils._pytree.tree_flatten((torch.Tensor, args, {}))
        yield OneOp(op, Spec(leaves, tree)), [torch.randn(shape).to(dtype)]


def run_sample(module: OneOp, tensors: list[torch.Tensor], compiled: bool) -> list[np.ndarray]:
    """The outputs by our graph."""
    if compiled:
        return run_compiled(module, tensors)
    captured = load_module(module, tensors)
    inputs = {
        value.name: as_array(tensor)
        for value, tensor in zip(captured.graph.inputs, tensors, strict=True)
    }
    params = {v.name: captured.weights.read(v.name) for v in captured.graph.params}
    return [np.asarray(array) for array in interpret(captured.graph, inputs, params)]


def run_compiled(module: OneOp, tensors: list[torch.Tensor]) -> list[np.ndarray]:
    from sglk.driver import compile
    from sglk.runtime.forward import load_forward

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "op.sglk"
        compile(module, tensors, output=path, selftest=False, dtype="fp32")
        with load_forward(path) as model:
            found = model(*[as_array(t) for t in tensors])
    return list(found) if isinstance(found, tuple) else [found]


def as_input(tensor: torch.Tensor) -> torch.Tensor:
    """In f32 if it has floats, and in memory of its own: a compiled module sees values alone."""
    plain = tensor.float() if tensor.is_floating_point() else tensor
    return plain.detach().contiguous().clone()


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """As a graph takes it: floats f32, integers i32."""
    if tensor.is_floating_point():
        return tensor.float().numpy()
    return tensor.numpy() if tensor.dtype in (torch.bool, torch.int8, torch.uint8) else (
        tensor.to(torch.int32).numpy()
    )  # fmt: skip


def differs(found: list[np.ndarray], wanted: list[torch.Tensor], dtype: torch.dtype) -> str:
    """What is wrong, or ""."""
    if len(found) != len(wanted):
        return f"{len(found)} results instead of {len(wanted)}"
    rtol, atol = TOLERANCE.get(dtype, (1e-4, 1e-5))
    for ours, theirs in zip(found, wanted, strict=True):
        right = theirs.double().numpy() if theirs.dtype != torch.bool else theirs.numpy()
        if ours.shape != right.shape:
            return f"shape {ours.shape} instead of {right.shape}"
        if not np.allclose(ours.astype(right.dtype), right, rtol, atol, equal_nan=True):
            return "other numbers"
    return ""


def at_places(found: list[np.ndarray], x: torch.Tensor, module: OneOp) -> list[np.ndarray]:
    """Values, and what lies at the places given for them: of equal elements torch may take any."""
    _, *rest = module.spec.leaves
    dim = rest[1] if len(rest) > 1 and type(rest[1]) is int else -1
    if not x.dim():
        return [found[0], x.numpy()]
    return [found[0], np.take_along_axis(x.numpy(), found[1].astype(np.int64), dim)]


def try_op(name: str, most: int, compiled: bool) -> Tally:
    tally = Tally()
    for dtype in DTYPES:
        for module, tensors in samples(name, dtype, most):
            plain = [as_input(t) for t in tensors]
            try:
                wanted = module(*[t.clone() for t in plain])
            except Exception:  # noqa: BLE001 - torch refuses its own sample in f32
                continue
            listed = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
            try:
                found = run_sample(module, plain, compiled)
                if name == "topk":
                    found, listed = at_places(found, plain[0], module), listed[:1] * 2
                fault = differs(found, listed, dtype)
            except SglkError as error:
                if OVERWRITES in str(error):
                    tally.training += 1
                else:
                    tally.refused[short(str(error))] += 1
                continue
            except Exception as error:  # noqa: BLE001 - a crash is a wrong answer, not the end
                fault = f"crash: {type(error).__name__}: {error}"
            if fault:
                tally.wrong[short(f"{dtype}: {fault}")] += 1
            else:
                tally.passed += 1
    return tally


def short(text: str) -> str:
    return text if len(text) < 160 else f"{text[:157]}..."


def counts(tallies: Mapping[str, Tally]) -> str:
    found = Counter(tally.verdict for tally in tallies.values())
    return f"{len(tallies)} ops: " + ", ".join(f"{n} {v}" for v, n in found.most_common())


def document(tallies: Mapping[str, Tally], compiled: bool) -> str:
    """The text of docs/coverage-aten.md."""
    tier = " --compiled" if compiled else ""
    training = sum(tally.training for tally in tallies.values())
    lines = [
        "# Core ATen ops", "",
        f"Made by `python bench/coverage_aten.py{tier} --markdown docs/coverage-aten.md`, with",
        f"torch {torch.__version__}: torch's own sample inputs in f32, bf16, int64 and bool. What",
        "the results mean is said in `bench/coverage_aten.py`.", "",
        f"{counts(tallies)}.", "",
        f"{sum(t.passed for t in tallies.values())} samples are right. Left out, since they",
        f"overwrite an input as in training: {training} samples.", "",
        "| op | result | samples right | refused or wrong |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, tally in sorted(tallies.items()):
        reasons = "; ".join([*tally.wrong, *tally.refused]).replace("|", "/")
        lines.append(f"| {name} | {tally.verdict} | {tally.passed} | {reasons} |")
    lines += ["", "## Not on the board", ""]
    lines += [f"- {name}: {why}" for name, why in EXCLUDED.items()]
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", help="only these")
    parser.add_argument("--samples", type=int, default=8, help="of each dtype (default: 8)")
    parser.add_argument("--compiled", action="store_true", help="compile and run artifacts")
    parser.add_argument("--json", type=Path, help="write every tally")
    parser.add_argument("--markdown", type=Path, help="write the page")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = options.ops or [name for name in core_names() if name not in EXCLUDED]
    tallies: dict[str, Tally] = {}
    for name in names:
        tallies[name] = tally = try_op(name, options.samples, options.compiled)
        reason = next(iter(tally.wrong or tally.refused), "")
        print(f"{name:36} {tally.verdict:9} {tally.passed:4}  {reason}", flush=True)
    print(f"\n{counts(tallies)}")
    training = sum(tally.training for tally in tallies.values())
    print(f"samples left out since they overwrite an input, as in training: {training}")
    print(f"left out: {', '.join(f'{name} ({why})' for name, why in EXCLUDED.items())}")
    if options.json:
        record = {n: {"verdict": t.verdict, **vars(t)} for n, t in tallies.items()}
        options.json.write_text(json.dumps(record, indent=1))
    if options.markdown:
        options.markdown.write_text(document(tallies, options.compiled))
    return 1 if any(tally.wrong for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
