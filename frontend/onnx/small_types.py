"""Element types narrower than torch computes with: which values they have, and rounding to them.

A float8 or float4 value lives in an f32, a two- or four-bit integer in a byte, as the number that
it stands for. So every op on them is the op of the wider type, and what makes them small is the
rounding in Cast and QuantizeLinear alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from onnx import TensorProto

from ..rounding import rounded
from .registry import TORCH_TYPES, Node, Tensor

_SIGN, _MAGNITUDE, _INFINITY = -(1 << 31), (1 << 31) - 1, 0x7F800000


@dataclass(frozen=True)
class FloatFormat:
    """``mantissa`` bits after the point, the exponent of the least normal number, the largest
    number, and what lies beyond: infinity, NaN or nothing."""

    mantissa: int
    least: int
    largest: float
    beyond: str
    signed_zero: bool = True


FLOATS: dict[int, FloatFormat] = {
    TensorProto.FLOAT8E4M3FN: FloatFormat(3, -6, 448.0, "nan"),
    TensorProto.FLOAT8E4M3FNUZ: FloatFormat(3, -7, 240.0, "nan", False),
    TensorProto.FLOAT8E5M2: FloatFormat(2, -14, 57344.0, "inf"),
    TensorProto.FLOAT8E5M2FNUZ: FloatFormat(2, -15, 57344.0, "nan", False),
    TensorProto.FLOAT4E2M1: FloatFormat(1, 0, 6.0, ""),
}
SCALE = TensorProto.FLOAT8E8M0
"""Powers of two from 2^-127 to 2^127."""
INTEGERS: dict[int, tuple[int, bool]] = {
    TensorProto.UINT4: (4, False),
    TensorProto.INT4: (4, True),
    TensorProto.UINT2: (2, False),
    TensorProto.INT2: (2, True),
}
"""Bits, and whether signed."""
_NARROW: dict[int, str] = {TensorProto.FLOAT16: "f16", TensorProto.BFLOAT16: "bf16"}
_WITHIN: dict[int, tuple[int, ...]] = {
    TensorProto.FLOAT16: (TensorProto.FLOAT16, *FLOATS),
    TensorProto.BFLOAT16: (TensorProto.BFLOAT16, *FLOATS, SCALE),
}
"""Types whose values need no rounding."""


def bounds(elem_type: int) -> tuple[int, int]:
    """The least and the largest number of an integer type."""
    if elem_type in INTEGERS:
        bits, signed = INTEGERS[elem_type]
        return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    info = torch.iinfo(TORCH_TYPES[elem_type])
    return int(info.min), int(info.max)


def cast(
    node: Node, x: Tensor, source: int, to: int, *, saturate: bool = True, round_mode: str = "up"
) -> Tensor:
    """By ONNX's rules: floats to the nearest value of even mantissa, then saturated or not;
    floats to integers toward zero; integers by their low bits."""
    if to not in TORCH_TYPES:
        node.refuse(f"expected numbers, got a cast to {TensorProto.DataType.Name(to)}")
    if to == source:
        return x
    if to in FLOATS:
        return rounded_float(x.to(torch.float32), FLOATS[to], saturate)
    if to == SCALE:
        return power_of_two(node, x.to(torch.float32), saturate, round_mode)
    if to in INTEGERS:
        return low_bits(x.to(torch.int32), *INTEGERS[to]).to(TORCH_TYPES[to])
    if to in _NARROW and source not in _WITHIN[to]:
        narrow: Tensor = rounded(x.to(torch.float32), _NARROW[to])
        return narrow.to(TORCH_TYPES[to])
    return x.to(TORCH_TYPES[to])


def low_bits(x: Tensor, bits: int, signed: bool) -> Tensor:
    mask = (1 << bits) - 1
    if not signed:
        return x & mask
    half = 1 << (bits - 1)
    return ((x + half) & mask) - half


def rounded_float(x: Tensor, form: FloatFormat, saturate: bool) -> Tensor:
    """f32 values at the nearest values of a format, on their bits."""
    bits = x.view(torch.int32)
    magnitude = bits & _MAGNITUDE
    drop = 23 - form.mantissa
    odd = (magnitude >> drop) & 1
    normal = ((magnitude + ((1 << (drop - 1)) - 1) + odd) >> drop) << drop
    step = 2.0 ** (form.least - form.mantissa + 23)  # adding it rounds to the least step
    small = ((magnitude.view(torch.float32) + step) - step).view(torch.int32)
    rounded_bits = torch.where(magnitude < _bits_of(2.0**form.least), small, normal)
    largest = _bits_of(form.largest)
    beyond = {"inf": _INFINITY, "nan": _INFINITY + 1}.get(form.beyond, largest)
    beyond = largest if saturate else beyond
    rounded_bits = torch.where(rounded_bits > largest, beyond, rounded_bits)
    not_a_number = _INFINITY + 1 if form.beyond else 0
    rounded_bits = torch.where(magnitude > _INFINITY, not_a_number, rounded_bits)
    sign = bits & _SIGN
    if not form.signed_zero:
        sign = torch.where(rounded_bits == 0, 0, sign)
    if not form.beyond:
        sign = torch.where(magnitude > _INFINITY, _SIGN, sign)
    return (rounded_bits | sign).view(torch.float32)


def _bits_of(number: float) -> int:
    """The bits of a power of two or of a format's largest number, as an f32."""
    mantissa, exponent = 1.0, 0
    while number / 2.0**exponent >= 2.0:
        exponent += 1
    while number / 2.0**exponent < 1.0:
        exponent -= 1
    mantissa = number / 2.0**exponent - 1.0
    return ((exponent + 127) << 23) | int(mantissa * (1 << 23))


def power_of_two(node: Node, x: Tensor, saturate: bool, round_mode: str) -> Tensor:
    """The exponent alone, rounded as asked; infinity and NaN become NaN."""
    magnitude = x.view(torch.int32) & _MAGNITUDE
    exponent, fraction = magnitude >> 23, magnitude & 0x7FFFFF
    if round_mode == "up":
        more = (fraction > 0).to(torch.int32)
    elif round_mode == "nearest":
        above = (fraction > 0x400000) | ((fraction == 0x400000) & (exponent > 0))
        more = above.to(torch.int32)
    elif round_mode == "down":
        more = torch.zeros_like(exponent)
    else:
        node.refuse(f"expected round_mode up, down or nearest, got {round_mode!r}")
    grown = exponent + more
    grown = grown.clamp(max=254) if saturate else grown
    grown = torch.where(exponent == 255, 255, grown)
    least = torch.where(grown == 0, 1 << 22, grown << 23)  # 2^-127 has no exponent of its own
    return torch.where(grown == 255, _INFINITY + 1, least).view(torch.float32)
