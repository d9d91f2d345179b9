"""Calls of the kernels of products: what each of them is given."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.dim import Dim
from ...ir.graph import Node
from ...ir.ops.norm import RmsNorm
from ...passes.choose_tiles import TileChoice
from ..lowering import Lowering, Operand, f32
from ..rows.linear import vector
from .dependent import launch_options
from .tiles import LinearConfig
from .weight_form import WeightForm

GEMV, GROUP_GEMV = "gemv.linear", "group_gemv.linear"
GEMVS = (GEMV, GROUP_GEMV)
"""Kernels that can normalize their rows on the way."""
WHOLE_TILES = "matmul_tiles.linear"
TAKES_FORMS = (GROUP_GEMV, "matmul_parts.linear", WHOLE_TILES)
LOCKS = "locks"
"""Zeroed memory that programs count finished parts of tiles in; all launches share it."""


def launch_product(
    ctx: Lowering,
    config: LinearConfig,
    choice: TileChoice,
    grid: tuple[Dim, Dim, Dim],
    arguments: Mapping[str, Operand | None],
    constants: Mapping[str, object],
    form: WeightForm,
    norm: Node | None,
) -> None:
    """``arguments``: x, w and what belongs to them, bias, residual, y, rows."""
    given = dict(arguments)
    every = {**constants, **config.constants}
    if config.kernel == WHOLE_TILES:  # what times of before say nothing of
        every.setdefault("REST", 0)
    if config.kernel in TAKES_FORMS:
        absent = {"w_scale": None, "w_zero": None}
        if config.kernel != GROUP_GEMV:
            absent["x_scale"] = None
        given = {**absent, **given}
        every |= {"FORM": form.kernel_form(config.x), "GROUP": form.group}
    elif config.kernel == GEMV:
        given["scale"] = given.pop("w_scale", None)
        given.pop("w_zero", None)
    if config.kernel in GEMVS:
        eps = norm.op.eps if norm is not None and isinstance(norm.op, RmsNorm) else 0.0
        weight = vector(ctx, norm.inputs[1]) if norm is not None else None
        given |= {"norm": weight, "eps": f32(eps)}
        every["OFFSET"] = 0.0
    elif config.can_share:
        given |= _shared(ctx, config)
    pdl, options = launch_options(ctx.target)
    if not config.starts_early:
        options = {}
    options |= {"num_warps": config.num_warps, "num_stages": config.num_stages}
    ctx.launch(config.kernel, grid, given, {**pdl, **every}, choice, options)


def _shared(ctx: Lowering, config: LinearConfig) -> dict[str, Operand | None]:
    """Memory for the parts of tiles."""
    if not config.streams:
        return {"partials": None, "locks": None}
    return {
        "partials": ctx.scratch(config.partials_bytes() // 4, "partials"),
        "locks": ctx.zeros(LOCKS, config.locks_bytes() // 4),
    }
