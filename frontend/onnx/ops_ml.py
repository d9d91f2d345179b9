"""``ai.onnx.ml``: scalers, encoders and linear models on numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .registry import Node, Tensor, Value, op, outside_trace

ML = "ai.onnx.ml"


def table(values: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of an attribute, which may be a tensor already."""
    with outside_trace():
        if isinstance(values, torch.Tensor):
            return values.to(dtype)
        return torch.tensor(list(values), dtype=dtype)


@op("ArrayFeatureExtractor", domain=ML)
def extract(node: Node, x: Tensor, places: Tensor) -> Value:
    """Columns by place, in the last axis."""
    chosen = x.index_select(-1, places.reshape(-1).to(torch.int64))
    return chosen.unsqueeze(0) if x.dim() == 1 else chosen


@op("Binarizer", domain=ML)
def binarize(node: Node, x: Tensor) -> Value:
    return (x > node.attrs.get("threshold", 0.0)).to(x.dtype)


@op("Scaler", domain=ML)
def scaler(node: Node, x: Tensor) -> Value:
    offset, scale = table(node.attrs["offset"]), table(node.attrs["scale"])
    return (x.to(torch.float32) - offset) * scale


@op("Normalizer", domain=ML)
def normalizer(node: Node, x: Tensor) -> Value:
    """Each row over its largest element, its sum of sizes, or its length."""
    x = x.to(torch.float32)
    kind = node.attrs.get("norm", "MAX")
    if kind == "MAX":
        size = x.amax(-1, keepdim=True)
    elif kind in ("L1", "L2"):
        size = x.abs() if kind == "L1" else x * x
        size = size.sum(-1, keepdim=True)
        size = size if kind == "L1" else torch.sqrt(size)
    else:
        node.refuse(f"expected norm MAX, L1 or L2, got {kind!r}")
    return torch.where(size == 0, x, x / size)


@op("Imputer", domain=ML)
def imputer(node: Node, x: Tensor) -> Value:
    """Missing numbers replaced, column by column."""
    whole = not x.dtype.is_floating_point
    name = "int64s" if whole else "floats"
    new = table(node.attrs[f"imputed_value_{name}"], x.dtype)
    old = node.attrs.get(f"replaced_value_{'int64' if whole else 'float'}", 0)
    missing = torch.isnan(x) if isinstance(old, float) and old != old else x == old
    return torch.where(missing, new, x)


@op("FeatureVectorizer", domain=ML)
def vectorize(node: Node, *xs: Tensor) -> Value:
    rows = [x.reshape(-1, 1) if x.dim() == 1 else x for x in xs]
    return torch.cat([row.to(torch.float32) for row in rows], -1)


@op("OneHotEncoder", domain=ML)
def one_hot(node: Node, x: Tensor) -> Value:
    """A column per category; an element of none gives zeros, if ``zeros`` says so."""
    if not node.attrs.get("cats_int64s"):
        node.refuse("expected cats_int64s, got categories that are texts")
    if not node.attrs.get("zeros", 1):
        node.refuse("expected zeros=1, got an encoder that fails on unknown categories")
    categories = table(node.attrs["cats_int64s"], torch.int64)
    return (x.to(torch.int64).unsqueeze(-1) == categories).to(torch.float32)


@op("LabelEncoder", domain=ML)
def label_encoder(node: Node, x: Tensor) -> Value:
    """Keys to values; an element that is no key becomes the default."""
    keys, values, default = _labels(node)
    hit = x.unsqueeze(-1) == keys.to(x.dtype)
    if x.dtype.is_floating_point:
        hit = hit | (torch.isnan(x).unsqueeze(-1) & torch.isnan(keys))
    place = hit.to(torch.int64).argmax(-1)
    return torch.where(hit.any(-1), values[place], default)


def _labels(node: Node) -> tuple[Tensor, Tensor, Tensor]:
    kinds = {"int64s": torch.int64, "floats": torch.float32, "tensor": None}
    found: dict[str, Tensor] = {}
    for side in ("keys", "values"):
        for kind, dtype in kinds.items():
            given = node.attrs.get(f"{side}_{kind}")
            if given is not None and not (isinstance(given, list) and not given):
                found[side] = given if dtype is None else table(given, dtype)
    if len(found) < 2:
        node.refuse("expected keys and values that are numbers, got texts")
    values = found["values"].reshape(-1)
    default = node.attrs.get("default_tensor")
    if default is None:
        whole = values.dtype == torch.int64
        name, least = ("default_int64", -1) if whole else ("default_float", -0.0)
        default = table([node.attrs.get(name, least)], values.dtype)
    return found["keys"].reshape(-1), values, default.reshape(())


# Linear models --------------------------------------------------------------------------------


@op("LinearRegressor", domain=ML)
def linear_regressor(node: Node, x: Tensor) -> Value:
    targets = node.attrs.get("targets", 1)
    return transformed(node, _linear(node, x, targets))


def _linear(node: Node, x: Tensor, rows: int) -> Tensor:
    weight = table(node.attrs["coefficients"]).reshape(rows, -1)
    bias = node.attrs.get("intercepts")
    return F.linear(x.to(torch.float32), weight, table(bias) if bias else None)


_TRANSFORMS = "NONE, SOFTMAX, SOFTMAX_ZERO, LOGISTIC"


def transformed(node: Node, y: Tensor) -> Tensor:
    kind = node.attrs.get("post_transform", "NONE")
    if kind == "NONE":
        return y
    if kind == "SOFTMAX":
        return F.softmax(y, -1)
    if kind == "LOGISTIC":
        return torch.sigmoid(y)
    if kind != "SOFTMAX_ZERO":
        node.refuse(f"expected a post_transform of {_TRANSFORMS}, got {kind!r}")
    grown = torch.where(y != 0, torch.exp(y - y.amax(-1, keepdim=True)), torch.zeros_like(y))
    return grown / grown.sum(-1, keepdim=True)


@op("LinearClassifier", domain=ML)
def linear_classifier(node: Node, x: Tensor) -> Value:
    """The class of the highest score, and the scores; two classes may share one row."""
    labels = node.attrs.get("classlabels_ints")
    if not labels:
        node.refuse("expected classlabels_ints, got labels that are texts")
    rows = len(node.attrs["coefficients"]) // int(x.shape[-1])
    scores = _linear(node, x, rows)
    classes = table(labels, torch.int64)
    if rows == 1 and len(labels) == 2:
        chosen = (scores[:, 0] > 0).to(torch.int64)
        both = torch.cat([-scores, scores], -1)
        logistic = node.attrs.get("post_transform", "NONE") == "LOGISTIC"
        return classes[chosen], torch.sigmoid(both) if logistic else transformed(node, both)
    return classes[scores.argmax(-1)], transformed(node, scores)
