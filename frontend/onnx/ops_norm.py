"""Normalizations, and the losses of classification."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .registry import Node, Tensor, Value, op


@op("BatchNormalization")
def batch_norm(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Value:
    """By given statistics, or in training mode by those of the batch, which then come out mixed."""
    epsilon = node.attrs.get("epsilon", 1e-5)
    if not node.attrs.get("training_mode", 0):
        return F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)
    keep = node.attrs.get("momentum", 0.9)
    axes = (0, *range(2, x.dim()))
    now_mean, now_var = x.mean(axes), x.var(axes, correction=0)
    y = F.batch_norm(x, now_mean, now_var, scale, bias, False, 0.0, epsilon)
    return y, mean * keep + now_mean * (1 - keep), var * keep + now_var * (1 - keep)


@op("InstanceNormalization")
def instance_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Value:
    axes = tuple(range(2, x.dim()))
    shape = [-1] + [1] * (x.dim() - 2)
    y = _standardized(x, axes, node.attrs.get("epsilon", 1e-5))
    return y * scale.reshape(shape) + bias.reshape(shape)


@op("MeanVarianceNormalization")
def mean_variance(node: Node, x: Tensor) -> Value:
    axes = tuple(node.attrs.get("axes", [0, 2, 3]))
    centred = x - x.mean(axes, keepdim=True)
    deviation = torch.sqrt((centred * centred).mean(axes, keepdim=True))
    return centred / (deviation + 1e-9)


def _standardized(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(axes, keepdim=True) + epsilon)


def _wide(x: Tensor, stash: int) -> Tensor:
    """``stash_type`` 1 asks for f32 within."""
    return x.to(torch.float32) if stash == 1 else x


@op("LayerNormalization")
def layer_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Value:
    axis = node.attrs.get("axis", -1) % x.dim()
    epsilon = node.attrs.get("epsilon", 1e-5)
    shape = list(x.shape[axis:])
    plain = list(scale.shape) == shape and (bias is None or list(bias.shape) == shape)
    if node.num_outputs == 1 and plain:
        return F.layer_norm(x, shape, scale, bias, epsilon)
    axes = tuple(range(axis, x.dim()))
    wide = _wide(x, node.attrs.get("stash_type", 1))
    mean = wide.mean(axes, keepdim=True)
    centred = wide - mean
    inverse = torch.rsqrt((centred * centred).mean(axes, keepdim=True) + epsilon)
    y = (centred * inverse).to(x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


@op("RMSNormalization")
def rms_norm(node: Node, x: Tensor, scale: Tensor) -> Value:
    axis = node.attrs.get("axis", -1) % x.dim()
    epsilon = node.attrs.get("epsilon", 1e-5)
    if scale.dim() == 1 and list(scale.shape) == list(x.shape[axis:]):
        return F.rms_norm(x, list(scale.shape), scale, epsilon)
    axes = tuple(range(axis, x.dim()))
    wide = _wide(x, node.attrs.get("stash_type", 1))
    inverse = torch.rsqrt((wide * wide).mean(axes, keepdim=True) + epsilon)
    return (wide * inverse).to(x.dtype) * scale


@op("GroupNormalization")
def group_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Value:
    """Factors per channel; before opset 21 per group."""
    groups = node.attrs["num_groups"]
    if node.opset >= 21:
        return F.group_norm(x, groups, scale, bias, node.attrs.get("epsilon", 1e-5))
    inside = x.shape[1] // groups
    spread = [p.repeat_interleave(inside, 0) for p in (scale, bias)]
    return F.group_norm(x, groups, spread[0], spread[1], node.attrs.get("epsilon", 1e-5))


@op("LpNormalization")
def lp_norm(node: Node, x: Tensor) -> Value:
    """Nothing but zeros stays zeros."""
    axis, p = node.attrs.get("axis", -1), node.attrs.get("p", 2)
    size = x.abs() if p == 1 else x * x
    length = size.sum(axis, keepdim=True)
    length = length if p == 1 else torch.sqrt(length)
    return torch.where(length == 0, torch.zeros_like(x), x / length)


@op("LRN")
def local_response(node: Node, x: Tensor) -> Value:
    """x / (bias + alpha / size * sum of squares of ``size`` channels around) ^ beta"""
    size = node.attrs["size"]
    alpha, beta = node.attrs.get("alpha", 1e-4), node.attrs.get("beta", 0.75)
    before = (size - 1) // 2
    flat = (x * x).flatten(2) if x.dim() > 2 else (x * x).unsqueeze(2)
    squares = F.pad(flat, [0, 0, before, size - 1 - before])
    total: Any = sum(squares.narrow(1, i, x.shape[1]) for i in range(size))
    return x / (node.attrs.get("bias", 1.0) + alpha / size * total.reshape(x.shape)) ** beta


# Losses ---------------------------------------------------------------------------------------


@op("NegativeLogLikelihoodLoss")
def nll_loss(node: Node, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Value:
    """-x at the class of each element, weighted; ``ignore_index`` counts for nothing."""
    ignored = node.attrs.get("ignore_index")
    classes = target.to(torch.int64)
    kept = None if ignored is None else classes != ignored
    safe = classes if kept is None else torch.where(kept, classes, torch.zeros_like(classes))
    loss = -torch.gather(x, 1, safe.unsqueeze(1)).squeeze(1)
    factor = torch.ones_like(loss) if weight is None else weight[safe]
    factor = factor if kept is None else torch.where(kept, factor, torch.zeros_like(factor))
    loss = loss * factor
    if kept is not None:
        loss = torch.where(kept, loss, torch.zeros_like(loss))
    reduction = node.attrs.get("reduction", "mean")
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / factor.sum()


@op("SoftmaxCrossEntropyLoss")
def cross_entropy(node: Node, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Value:
    logs = F.log_softmax(x, 1)
    loss = nll_loss(node, logs, target, weight)
    return (loss, logs) if node.num_outputs > 1 else loss
