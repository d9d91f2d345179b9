"""The passes in order: `step_pipeline`, read top to bottom, is the compiler's graph half."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import knobs
from ..errors import PassError
from ..ir.dtype import BF16, F32, I8, DType
from ..ir.graph import Graph
from ..ir.target import Target
from .base import Pass
from .canonicalize import Canonicalize
from .eliminate_common import EliminateCommon
from .eliminate_dead import EliminateDead
from .flat_tokens import FlatTokens
from .fold_constants import FoldConstants
from .fuse_add_rmsnorm import FuseAddRmsnorm
from .fuse_convolution_scale import FuseConvolutionScale
from .fuse_linear_epilogue import FuseLinearEpilogue
from .fuse_rope_write_kv import FuseRopeWriteKv
from .instruments import Instrument, PassRecord, Timing, default_instruments
from .quantize_activations import QuantizeActivations
from .recognise_activations import RecogniseActivations
from .recognise_attention import RecogniseAttention
from .recognise_causal_conv import RecogniseCausalConv
from .recognise_experts import RecogniseExperts
from .recognise_gated_mlp import RecogniseGatedMlp
from .recognise_layernorm import RecogniseLayernorm
from .recognise_qkv import RecogniseQkv
from .recognise_rmsnorm import RecogniseRmsnorm
from .recognise_rope import RecogniseRope
from .round_activations import RoundActivations
from .round_attention import RoundAttention
from .set_weight_dtypes import SetWeightDtypes
from .snapshot import Snapshot
from .split_merged_tokens import SplitMergedTokens
from .store_activations import StoreActivations
from .sum_groups import SumGroups


@dataclass(frozen=True)
class StepOptions:
    """What the user chose for a step program."""

    dtype: DType = F32
    """Type of matrix weights and embeddings that have no stored type of their own to keep."""
    kv_dtype: DType = F32
    stored: tuple[tuple[str, DType], ...] = ()
    """Parameter name and the type that the weight file holds it in, for ``--quant keep``."""
    activations: DType = F32
    """What products multiply: f32, bf16, or i8 where the weight is of a block type, else bf16."""
    form: DType | None = None
    """Type of few bits that weights of linears without a stored type get instead of ``dtype``."""


def step_pipeline(target: Target, options: StepOptions) -> tuple[Pass, ...]:
    """A captured decoder -> its step graph with the fused ops that ``target`` has rows for."""
    return (
        # Clean up what capture left.
        Canonicalize(),
        FoldConstants(),
        EliminateCommon(),
        EliminateDead(),
        # What models spell out of attention, the one op that may mix tokens.
        RecogniseAttention(),
        # Convolutions that look back only; with scans, what else may mix tokens.
        RecogniseCausalConv(),
        SplitMergedTokens(),
        Canonicalize(),
        FoldConstants(),
        EliminateCommon(),
        # One request of [1, tokens] -> flat tokens of many requests, proved.
        FlatTokens(target.page_size, options.kv_dtype),
        Canonicalize(),
        FoldConstants(),
        EliminateCommon(),
        # The types that the artifact stores.
        SetWeightDtypes(options.dtype, _supported(target, options), options.form),
        # Raise what the model spells out to the ops that kernels know.
        RecogniseActivations(),
        RecogniseLayernorm(),
        RecogniseRmsnorm(),
        RecogniseRope(),
        *only_if(target, "gated_linear", RecogniseGatedMlp(target.gated_rows)),
        *only_if(target, "expert_mlp", RecogniseExperts()),
        *only_if(target, "linear", FuseLinearEpilogue(activation=False, residual=False)),
        RecogniseQkv(),
        Canonicalize(),
        FoldConstants(),
        EliminateCommon(),
        # Fuse what the target has rows for.
        *only_if(target, "linear", FuseLinearEpilogue()),
        *only_if(target, "add_rmsnorm", FuseAddRmsnorm()),
        *only_if(target, "rope_write_kv", FuseRopeWriteKv(norms=_takes_norms(target))),
        *_round(target, options),
        EliminateDead(),
    )


def _round(target: Target, options: StepOptions) -> tuple[Pass, ...]:
    """Activations of fewer bits, once for each value."""
    if target.activation_dtype == BF16:
        return (StoreActivations(), EliminateCommon())
    if options.activations == F32:
        return (SumGroups(), EliminateCommon()) if target.handwritten else ()
    first = (QuantizeActivations(target.rounded_from),) if options.activations == I8 else ()
    rounding = (RoundActivations(rounded_from=target.rounded_from), RoundAttention())
    return (*first, *rounding, EliminateCommon())


def forward_pipeline(target: Target, options: StepOptions) -> tuple[Pass, ...]:
    """Any other captured module -> its graph with the fused ops that ``target`` has rows for."""
    return (
        Canonicalize(),
        FoldConstants(),
        EliminateCommon(),
        EliminateDead(),
        SetWeightDtypes(options.dtype, _supported(target, options), options.form),
        FuseConvolutionScale(),
        RecogniseActivations(),
        RecogniseLayernorm(),
        RecogniseRmsnorm(),
        *only_if(target, "gated_linear", RecogniseGatedMlp(target.gated_rows)),
        *only_if(target, "linear", FuseLinearEpilogue()),
        Canonicalize(),
        FoldConstants(),
        EliminateCommon(),
        *_round(target, options),
        EliminateDead(),
    )


def only_if(target: Target, op: str, step: Pass) -> tuple[Pass, ...]:
    """The pass if the target has a row for the op that it makes (or, for linear, its epilogues)."""
    return (step,) if op in target.fused_ops else ()


def _takes_norms(target: Target) -> bool:
    return "rope_write_kv.norms" in target.fused_ops


def _supported(target: Target, options: StepOptions) -> tuple[tuple[str, DType], ...]:
    """Stored types are kept to the value: one that the target cannot read becomes f32, or where
    products multiply bf16 anyway, what the user chose for the others."""
    other = F32 if target.activation_dtype == F32 else options.dtype
    return tuple((name, t if target.supports(t) else other) for name, t in options.stored)


@dataclass(frozen=True)
class PipelineReport:
    """What ran. ``stopped_after`` is the pass that ``SGLK_STOP_AFTER`` named, else empty."""

    records: tuple[PassRecord, ...]
    stopped_after: str = ""


def run_pipeline(
    graph: Graph, passes: Sequence[Pass], instruments: Sequence[Instrument] | None = None
) -> PipelineReport:
    """Run the passes in order on ``graph``, in place."""
    timing = Timing()
    watching = (timing, *(default_instruments() if instruments is None else instruments))
    _check_stop(passes)
    for number, step in enumerate(passes, start=1):
        _run_one(number, step, graph, watching)
        if any(i.wants_stop(step) for i in watching):
            return PipelineReport(tuple(timing.records), step.name)
    return PipelineReport(tuple(timing.records))


def _check_stop(passes: Sequence[Pass]) -> None:
    wanted, names = knobs.get().stop_after, [p.name for p in passes]
    if wanted and wanted not in names:
        raise PassError(f"SGLK_STOP_AFTER: expected one of {', '.join(names)}, got {wanted!r}")


def _run_one(number: int, step: Pass, graph: Graph, watching: Sequence[Instrument]) -> None:
    for instrument in reversed(watching):
        instrument.before(number, step, graph)
    given = Snapshot.take(graph)
    try:
        changed = step.run(graph)
        for instrument in watching:
            instrument.after(number, step, graph, changed)
    except PassError:
        raise  # a refusal in the user's words, not a crash
    except Exception as error:
        error.add_note(_replay_note(step, given))
        raise


def _replay_note(step: Pass, given: Snapshot) -> str:
    """Write the graph that the pass was given; the command that runs the pass on it again."""
    folder = Path(knobs.get().dump or tempfile.mkdtemp(prefix="sglk-"))
    file = folder / f"crash-{step.name}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(given.as_text())
    except OSError as error:
        return f"the graph that {step.name} was given could not be written: {error}"
    return f"replay with: sglk opt {shlex.quote(str(file))} -p {shlex.quote(step.as_text())}"
