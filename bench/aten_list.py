"""Core ATen by name: which ops count, which do not and why, and where torch keeps their samples."""

from __future__ import annotations

from typing import Any

import torch

_RANDOM = "random"
_BACKWARD = "backward"
_DATA = "the size of its result depends on values"
_SIZES = "a size, no tensor"
EXCLUDED = {
    "_adaptive_avg_pool2d_backward": _BACKWARD,
    "avg_pool2d_backward": _BACKWARD,
    "convolution_backward": _BACKWARD,
    "embedding_dense_backward": _BACKWARD,
    "max_pool2d_with_indices_backward": _BACKWARD,
    "native_group_norm_backward": _BACKWARD,
    "native_layer_norm_backward": _BACKWARD,
    "native_dropout": _RANDOM,
    "rand": _RANDOM,
    "randn": _RANDOM,
    "randperm": _RANDOM,
    "empty": "undefined values",
    "empty_strided": "undefined values",
    "nonzero": _DATA,
    "_local_scalar_dense": "a number that the host reads",
    "sym_numel": _SIZES,
    "sym_size": _SIZES,
    "sym_storage_offset": _SIZES,
    "sym_stride": _SIZES,
    "_fft_c2r": "complex numbers",
    "_fft_r2c": "complex numbers",
    "_pdist_forward": "met in training losses only",
}
"""Ops that inference does not meet, each with the reason."""
OPINFO_OF = {
    "_adaptive_avg_pool2d": "nn.functional.adaptive_avg_pool2d",
    "_adaptive_avg_pool3d": "nn.functional.adaptive_avg_pool3d",
    "_cdist_forward": "cdist",
    "_embedding_bag": "nn.functional.embedding_bag",
    "_log_softmax": "log_softmax",
    "_native_batch_norm_legit": "nn.functional.instance_norm",
    "_native_batch_norm_legit_no_training": "nn.functional.batch_norm",
    "_softmax": "softmax",
    "_to_copy": "to",
    "alias": "resolve_conj",
    "avg_pool2d": "nn.functional.avg_pool2d",
    "avg_pool3d": "nn.functional.avg_pool3d",
    "constant_pad_nd": "constant_pad_nd",
    "convolution": "nn.functional.conv2d",
    "copy": "clone",
    "elu": "nn.functional.elu",
    "embedding": "nn.functional.embedding",
    "gelu": "nn.functional.gelu",
    "grid_sampler_2d": "nn.functional.grid_sample",
    "index": "__getitem__",
    "hardtanh": "nn.functional.hardtanh",
    "leaky_relu": "nn.functional.leaky_relu",
    "max": "max",
    "max_pool2d_with_indices": "nn.functional.max_pool2d",
    "max_pool3d_with_indices": "nn.functional.max_pool3d",
    "native_group_norm": "nn.functional.group_norm",
    "reflection_pad1d": "nn.functional.pad",
    "reflection_pad2d": "nn.functional.pad",
    "reflection_pad3d": "nn.functional.pad",
    "relu": "nn.functional.relu",
    "replication_pad2d": "nn.functional.pad",
    "replication_pad3d": "nn.functional.pad",
    "upsample_bilinear2d": "nn.functional.upsample_bilinear",
    "upsample_nearest2d": "nn.functional.upsample_nearest",
    "view": "view",
}
"""The OpInfo whose samples reach an op that has none of its own name."""
ALWAYS: dict[str, dict[str, Any]] = {"sort": {"dim": -1, "stable": True}}
"""Arguments that a sample has unless it says otherwise: without, equal elements have no order."""
OWN: dict[str, tuple[Any, tuple[int, ...], tuple[Any, ...]]] = {
    "col2im": (torch.nn.functional.fold, (2, 12, 12), ((4, 5), (2, 2), 1, 0, 1)),
}
"""Ops without an OpInfo: a function that reaches them, the shape of its input, and the rest."""


def core_names() -> list[str]:
    """The names that torch tags as core, without their overloads."""
    found = set()
    for name in dir(torch.ops.aten):
        packet: Any = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", lambda: ())():
            if torch.Tag.core in getattr(packet, overload).tags:
                found.add(name)
    return sorted(found)
