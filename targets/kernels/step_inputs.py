"""Inputs of a step, prepared on the device, so that a decode step needs nothing from the host.

Layouts: all i32. token_ids, positions, slots [T]; seq_lens [S]; page_table [S, pages]; chosen [L].
Grids: one program per BLOCK elements, (cdiv(n, BLOCK), 1, 1).
  copy_words      destination[0 .. n] = source[0 .. n]; the source may be mapped memory of the host
  place_tokens    a token id of -1 - r becomes the token that row r of the step before chose, or 0
                  where that one is -1
  advance_steps   every sequence of a decode step moves on by one token (T = S, row s is sequence
                  s): its chosen token, position + 1, length + 1 and the slot of its page table. A
                  sequence of length 0 is padding and stays; one whose pages are full becomes
                  padding.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def copy_words(source, destination, n, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(destination + i, tl.load(source + i, mask=i < n, other=0), mask=i < n)


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


@triton.jit
def advance_steps(
    chosen, token_ids, positions, slots, seq_lens, page_table, seqs, pages,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    s = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    length = tl.load(seq_lens + s, mask=s < seqs, other=0)
    goes_on = (length > 0) & (length < pages * PAGE)
    page = tl.load(page_table + s.to(tl.int64) * pages + length // PAGE, mask=goes_on, other=0)
    token = tl.maximum(tl.load(chosen + s, mask=goes_on, other=0), 0)
    slot = tl.where(goes_on, page * PAGE + length % PAGE, 0)
    tl.store(token_ids + s, token, mask=s < seqs)
    tl.store(positions + s, tl.where(goes_on, length, 0), mask=s < seqs)
    tl.store(slots + s, slot, mask=s < seqs)
    tl.store(seq_lens + s, tl.where(goes_on, length + 1, 0), mask=s < seqs)
