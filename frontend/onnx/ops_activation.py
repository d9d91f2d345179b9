"""Activations, softmax, dropout and gates."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .registry import Node, Tensor, Value, op

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "HardSwish": F.hardswish,
    "Mish": F.mish,
    "Relu": torch.relu,
    "Softplus": F.softplus,
    "Softsign": lambda x: x / (1 + x.abs()),
}


@op(*_PLAIN)
def plain(node: Node, x: Tensor) -> Value:
    return _PLAIN[node.op_type](x)


@op("LeakyRelu")
def leaky_relu(node: Node, x: Tensor) -> Value:
    return F.leaky_relu(x, node.attrs.get("alpha", 0.01))


@op("ThresholdedRelu")
def thresholded_relu(node: Node, x: Tensor) -> Value:
    return torch.where(x > node.attrs.get("alpha", 1.0), x, torch.zeros_like(x))


@op("Elu")
def elu(node: Node, x: Tensor) -> Value:
    return F.elu(x, node.attrs.get("alpha", 1.0))


@op("Celu")
def celu(node: Node, x: Tensor) -> Value:
    return F.celu(x, node.attrs.get("alpha", 1.0))


@op("Selu")
def selu(node: Node, x: Tensor) -> Value:
    """ONNX lets models choose both factors; their defaults are those of the paper."""
    alpha = node.attrs.get("alpha", 1.6732632423543772)
    return node.attrs.get("gamma", 1.0507009873554805) * F.elu(x, alpha)


@op("PRelu")
def prelu(node: Node, x: Tensor, slope: Tensor) -> Value:
    """Slopes broadcast from the last axis; before opset 7 a row of them was one per channel."""
    if slope.dim() == 1 and x.dim() > 2 and slope.shape[0] not in (1, x.shape[-1]):
        slope = slope.reshape(-1, *[1] * (x.dim() - 2))
    return torch.where(x < 0, x * slope, x)


@op("HardSigmoid")
def hard_sigmoid(node: Node, x: Tensor) -> Value:
    line = x * node.attrs.get("alpha", 0.2) + node.attrs.get("beta", 0.5)
    return line.clamp(0, 1)


@op("Shrink")
def shrink(node: Node, x: Tensor) -> Value:
    limit, bias = node.attrs.get("lambd", 0.5), node.attrs.get("bias", 0.0)
    moved = torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, torch.zeros_like(x)))
    return moved.to(x.dtype)


@op("Swish")
def swish(node: Node, x: Tensor) -> Value:
    alpha = node.attrs.get("alpha", 1.0)
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@op("SwiGLU")
def swiglu(node: Node, gate: Tensor, x: Tensor) -> Value:
    activated: Tensor = swish(node, gate)
    return activated * x


@op("Gelu")
def gelu(node: Node, x: Tensor) -> Value:
    return F.gelu(x, approximate=node.attrs.get("approximate", "none"))


@op("Softmax")
def softmax(node: Node, x: Tensor) -> Value:
    return F.softmax(x, node.attrs.get("axis", -1))


@op("LogSoftmax")
def log_softmax(node: Node, x: Tensor) -> Value:
    return F.log_softmax(x, node.attrs.get("axis", -1))


@op("Dropout")
def dropout(
    node: Node, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> Value:
    """Nothing is dropped outside training, nor with a ratio of 0."""
    is_training = training is not None and bool(node.ints(training)[0])
    if is_training and (ratio is None or node.numbers(ratio)[0] != 0):
        node.refuse("expected inference, got training_mode (which drops elements at random)")
    return (x, torch.ones_like(x, dtype=torch.bool)) if node.num_outputs > 1 else x
