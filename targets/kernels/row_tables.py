"""Rows of a table and rotary tables, for GPUs: they start while the kernel before them ends.

As `embedding.gather_rows` and `rope.rope_table`, with their layouts, grids and limits.
PDL: 1: waits before the first load, as ids and positions may be those of the kernel before, and
  lets the next one start only then: later kernels of a step read lengths and slots before they
  wait, which "place_tokens" has written once one of these has waited for it.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from . import embedding, rope


@triton.jit
def gather_rows(table, ids, y, scale, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """y[t] = table[ids[t]] * scale."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    embedding.gather_rows(table, ids, y, scale, K, BLOCK)


@triton.jit
def rope_table(
    positions, inv_freq, cos, sin, scale,
    HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """cos, sin of position * inv_freq, times scale."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    rope.rope_table(positions, inv_freq, cos, sin, scale, HALF, BLOCK_HALF)
