"""Quantized Hugging Face checkpoints, read as they are: AWQ, GPTQ, compressed-tensors, FP8.

Open first: `source.py` (the door), then one format, such as `gptq.py`.
"""

from __future__ import annotations

from .source import QuantizedSource, read_quantized

__all__ = ["QuantizedSource", "read_quantized"]
