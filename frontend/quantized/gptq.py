"""GPTQ (`quant_method: gptq`), as AutoGPTQ (format ``gptq``) and GPTQModel (``gptq_v2``) write it.

A layer [N, K] is ``qweight`` i32 [K * bits / 32, N], integers along K from the lowest bits up;
``qzeros`` i32 [groups, N * bits / 32], integers along N; ``scales`` [groups, N]; and ``g_idx`` i32
[K], the group of each input (absent: runs of the group size).
value[n, k] = (q[k, n] - zero[g, n]) * scale[g, n], g = g_idx[k]. The format ``gptq`` stores
zero - 1 (a zero of 0 as all ones), ``gptq_v2`` the zero itself.

With ``desc_act`` groups are no runs of inputs. Columns are then sorted by group, and the graph
gathers the inputs of such a product in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.forms import GroupForm
from ...ir.groups import GroupArray
from .layers import (
    Found,
    Layer,
    LayerError,
    Settings,
    Stored,
    check_matrix,
    group_size,
    need,
    prefixes,
    scale_type,
    sorted_columns,
)
from .words import unpack, width


def find(stored: Stored, settings: Settings) -> Found:
    """Every layer that has a ``qweight``."""
    found, names = Found(), stored.names()
    kind = settings.get("checkpoint_format", "gptq")
    if kind not in ("gptq", "gptq_v2"):
        found.faults.append(f"checkpoint_format {kind!r} (gptq and gptq_v2 are)")
        return found
    for prefix in prefixes(names, ".qweight"):
        try:
            found.layers[f"{prefix}.weight"] = _layer(stored, names, prefix, settings)
        except LayerError as fault:
            found.faults.append(f"{prefix} {fault}")
    return found


def _layer(stored: Stored, names: Sequence[str], prefix: str, settings: Settings) -> Layer:
    weight, zeros, scales = (f"{prefix}.{part}" for part in ("qweight", "qzeros", "scales"))
    need(stored, names, weight, zeros, scales)
    words, outputs = stored.info(weight).shape
    bits = _bits(stored.info(zeros).shape, outputs)
    shape = check_matrix((outputs, width(words, bits)))
    groups = stored.info(scales).shape[0]
    group = group_size(shape[1], groups, settings.get("group_size"))
    index = f"{prefix}.g_idx"
    columns = sorted_columns(stored.stored(index), group) if index in names else None
    plus = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
    zero = _zeros(stored.stored(zeros), bits, plus)
    has_zeros = not settings.get("sym", False) or bool((zero != 1 << (bits - 1)).any())
    form = GroupForm(f"i{bits}", group, scale_type(stored, scales), has_zeros)

    def read() -> GroupArray:
        q = unpack(stored.stored(weight).T, bits)
        if columns is not None:
            q = q[:, columns]
        kept = zero.T.copy() if has_zeros else None
        return GroupArray(form.name, shape, q, stored.stored(scales).T.copy(), kept)

    tensors = (weight, zeros, scales, *([index] if index in names else []))
    return Layer(form, shape, tensors, read, columns)


def _bits(zeros: tuple[int, ...], outputs: int) -> int:
    """From the width of the zero points: layers of one checkpoint may differ."""
    bits = zeros[-1] * 32 / outputs if outputs else 0
    if bits not in (4, 8):
        raise LayerError(f"has integers of {bits:g} bits (4 and 8 are read)")
    return int(bits)


def _zeros(words: NDArray[Any], bits: int, plus: int) -> NDArray[np.uint8]:
    """[groups, N]; what wraps around comes from a zero of 0."""
    return unpack(words, bits) + np.uint8(plus) & np.uint8((1 << bits) - 1)
