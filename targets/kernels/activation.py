"""Activation functions on f32 tiles, inlined into the epilogues of other kernels.

Kinds (the constexpr `ACT`): none, relu, relu2 (squared relu), silu, gelu (erf), gelu_tanh,
gelu_quick (x * sigmoid(1.702 x)), sigmoid, tanh.
"""

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """tanh by one exp of a negative number (never overflows); a series where that would cancel."""
    t = tl.exp(-2.0 * tl.abs(x))
    big = (1.0 - t) / (1.0 + t)
    square = x * x
    small = x * (1.0 + square * (-0.333333333 + square * (0.133333333 + square * -0.053968254)))
    return tl.where(tl.abs(x) < 0.1, small, tl.where(x < 0.0, -big, big))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def activate(x, ACT: tl.constexpr):
    y = x
    if ACT == "relu":
        y = tl.maximum(x, 0.0)
    elif ACT == "relu2":
        y = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    elif ACT == "silu":
        y = x / (1.0 + tl.exp(-x))
    elif ACT == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        y = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif ACT == "gelu_quick":
        y = x * sigmoid(1.702 * x)
    elif ACT == "sigmoid":
        y = sigmoid(x)
    elif ACT == "tanh":
        y = tanh(x)
    else:
        tl.static_assert(ACT == "none")
    return y
