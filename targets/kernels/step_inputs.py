"""Inputs of a step, filled in on the device, so that they need not wait for the host.

Layouts: i32 token_ids [T]; chosen [L]. Grid: one program per BLOCK elements, (cdiv(T, BLOCK), 1,
1).
  place_tokens    a token id of -1 - r becomes the token that row r of the step before chose, or 0
                  where that one is -1
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def place_tokens(token_ids, chosen, tokens, rows, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Arguments tokens = T and rows = L are i32."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(token_ids + i, mask=i < tokens, other=0)
    row = -1 - token
    real = tl.load(chosen + row, mask=(row >= 0) & (row < rows), other=0)
    tl.store(token_ids + i, tl.maximum(real, 0), mask=(i < tokens) & (row >= 0))
