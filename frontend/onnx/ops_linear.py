"""Products of matrices."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .registry import Node, Tensor, Value, op

_SIGNED = {torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Products and sums of these have the same low bits, and torch multiplies no unsigned matrices."""


@op("MatMul")
def matmul(node: Node, a: Tensor, b: Tensor) -> Value:
    dtype = a.dtype
    if dtype in _SIGNED:
        return torch.matmul(a.to(_SIGNED[dtype]), b.to(_SIGNED[dtype])).to(dtype)
    return torch.matmul(a, b)


@op("Gemm")
def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Value:
    """alpha A B + beta C, with either matrix transposed; C broadcasts."""
    alpha, beta = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    a = a.t() if node.attrs.get("transA", 0) else a
    turned = bool(node.attrs.get("transB", 0))
    plain = turned and alpha == 1 and beta == 1 and a.dtype.is_floating_point
    if plain and c is not None and c.dim() == 1 and c.shape[0] == b.shape[0]:
        return F.linear(a, b, c)
    product = matmul(node, a, b.t() if turned else b)
    product = product if alpha == 1 else _scaled(product, alpha)
    if c is None:
        return product
    return product + (c if beta == 1 else _scaled(c, beta))


def _scaled(x: Tensor, factor: float) -> Tensor:
    """Of integers too: the product is cut towards zero."""
    return x * factor if x.dtype.is_floating_point else (x * factor).to(x.dtype)


INTEGER_TERMS = 258
"""Products of two bytes, each a difference of bytes, that f32 adds up exactly: 2^24 / 255^2."""


@op("MatMulInteger")
def matmul_integer(
    node: Node,
    a: Tensor,
    b: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
) -> Value:
    """Bytes less their zero points, multiplied exactly: one zero point, or one per row of A or
    column of B."""
    left = a.to(torch.int32)
    right = b.to(torch.int32)
    if a_zero is not None:
        left = left - _per_row(a_zero.to(torch.int32))
    if b_zero is not None:
        right = right - _per_column(b_zero.to(torch.int32))
    return torch.matmul(left, right)


def _per_row(x: Tensor) -> Tensor:
    return x.unsqueeze(-1) if x.dim() == 1 and x.shape[0] != 1 else x


def _per_column(x: Tensor) -> Tensor:
    return x.unsqueeze(-2) if x.dim() == 1 and x.shape[0] != 1 else x
