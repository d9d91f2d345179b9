"""Kernels of test_cuda_driver.py."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def saxpy(x, y, n, a, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = a * tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n)
    tl.store(y + i, value, mask=i < n)


@triton.jit
def look_up(token_ids, logit_rows, table, logits, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    token = tl.load(token_ids + tl.load(logit_rows + row)).to(tl.int64)
    value = tl.load(table + token * VOCAB + i, mask=i < VOCAB)
    tl.store(logits + row * VOCAB + i, value, mask=i < VOCAB)
