"""Inputs of a step, filled in on the device, so that they need not wait for the host.

Layouts: i32 token_ids, positions, slots [T]; seq_lens [S]; chosen [L]; turn [6], a step's place
among the others (`argmax_rows.best_of_row` writes what the next step reads):
  0  whether this step is the one before, each sequence a token further on: the host wrote nothing
  1  its sequences, where each has one token and one row of logits; at most T and S
  2  slot of pinned memory that its tokens go to
  3, 4  slots there are, rows of each
  5  as 2, for the end of this step
Grid: one program per BLOCK elements, (cdiv(T, BLOCK), 1, 1).
  place_tokens    a token id of -1 - r becomes the token that row r of the step before chose, or 0
                  where that one is -1; a step that follows has those of all its rows, and its
                  positions, slots and lengths grow by one
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def grow(p, i, moves):
    """p[i] + 1 where it moves."""
    tl.store(p + i, tl.load(p + i, mask=moves, other=0) + 1, mask=moves)


@triton.jit
def place_tokens(
    turn, token_ids, positions, slots, seq_lens, chosen, tokens, rows,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Arguments tokens = T and rows = L are i32."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    moves = i < tl.load(turn) * tl.load(turn + 1)
    token = tl.load(token_ids + i, mask=i < tokens, other=0)
    row = tl.where(moves, i, -1 - token)
    real = tl.load(chosen + row, mask=(row >= 0) & (row < rows), other=0)
    tl.store(token_ids + i, tl.maximum(real, 0), mask=(i < tokens) & (row >= 0))
    grow(positions, i, moves)
    grow(slots, i, moves)
    grow(seq_lens, i, moves)
    if tl.program_id(0) == 0:
        tl.store(turn + 5, tl.load(turn + 2))
