"""Checks of a step's arrays: a wrong index would make a kernel read or write foreign memory."""

from __future__ import annotations

import numpy as np

from ....errors import DeviceError
from ...device import STEP_FIELDS, Int32s, StepBatch, arrays_of, sizes_of

INT32_MAX = 2**31 - 1
Arrays = dict[str, Int32s]


def check_shapes(batch: StepBatch, max_tokens: int) -> tuple[Arrays, dict[str, int]]:
    """The arrays by name and the symbol values of a well-formed batch."""
    sizes = sizes_of(batch, max_tokens, "kunlun")
    return dict(zip(STEP_FIELDS, arrays_of(batch), strict=True)), sizes._asdict()


def check_values(
    arrays: Arrays, sizes: dict[str, int], *, page_size: int, num_pages: int, vocab_size: int
) -> None:
    """Refuse any value that points outside."""
    tokens = sizes["tokens"]
    most = {
        "token_ids": vocab_size - 1,
        "positions": INT32_MAX,
        "slots": min(num_pages * page_size - 1, INT32_MAX),
        "query_start": tokens,
        "seq_lens": min(sizes["pages"] * page_size, INT32_MAX),
        "page_table": num_pages - 1,
        "logit_rows": tokens - 1,
    }
    for name, array in arrays.items():
        if array.size and not 0 <= int(array.min()) <= int(array.max()) <= most[name]:
            flat = array.reshape(-1)
            at = int(np.flatnonzero((flat < 0) | (flat > most[name]))[0])
            raise DeviceError(
                f"kunlun: step input {name}: expected values in 0..{most[name]},"
                f" got {flat[at]} at {at}"
            )
    starts, lengths = arrays["query_start"], arrays["seq_lens"]
    rows = np.diff(starts)
    if (rows < 0).any() or (rows > lengths).any():
        raise DeviceError(
            "kunlun: step: expected query_start to grow by at most seq_lens,"
            f" got {starts.tolist()[:20]} and {lengths.tolist()[:20]}"
        )
