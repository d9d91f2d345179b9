"""A model that a null driver can run: three kernels in Python, so that every token can be checked.

The cache holds token + 1 of every position. The next token after some tokens is the sum of their
cache entries modulo the vocabulary: wrong slots, pages, lengths or padding change it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sglk.targets.artifact import (
    FORMAT,
    Arg,
    Artifact,
    ArtifactWriter,
    Bucket,
    Buffer,
    Call,
    Program,
)
from sglk.targets.artifact.kernel_pack import PackedKernel, write_pack
from sglk.targets.cuda.device.driver import Grid
from sglk.targets.cuda.device.null_driver import Kernel
from sglk.targets.device import StepBatch

VOCAB, PAGE = 29, 4
INPUTS = {
    "token_ids": "tokens", "positions": "tokens", "slots": "tokens", "query_start": "seqs + 1",
    "seq_lens": "seqs", "page_table": "seqs * pages", "logit_rows": "rows",
}  # fmt: skip


def buffer(name: str, size: str, kind: str, dtype: str = "i32", offset: str = "0") -> Buffer:
    return Buffer(name, dtype, (size,), kind, offset, f"({size}) * 4")


def memory(*names: str) -> tuple[Arg, ...]:
    return tuple(Arg("state" if name == "kv" else "buffer", name) for name in names)


def numbers(*texts: str) -> tuple[Arg, ...]:
    return tuple(Arg("i32", text) for text in texts)


def step_program() -> Program:
    write = Call(
        "write", ("cdiv(tokens, 8)", "1", "1"),
        (*memory("token_ids", "slots", "kv"), *numbers("tokens")), "write_kv",
    )  # fmt: skip
    attend = Call(
        "attend", ("seqs", "1", "1"),
        (
            *memory("query_start", "seq_lens", "page_table", "kv", "sums"),
            *numbers("seqs", "pages", "tokens"),
        ), "attention",
    )  # fmt: skip
    head = Call(
        "head", ("rows", "2", "1"),
        (*memory("sums", "logit_rows"), Arg("weight", "head"), *memory("logits"),
         *numbers("rows"), Arg("f32", "0.5")), "linear",
    )  # fmt: skip
    calls = (write, attend, head)
    return Program(
        entry="step",
        symbols=("tokens", "seqs", "pages", "rows"),
        inputs=tuple(buffer(name, size, "input") for name, size in INPUTS.items()),
        outputs=(buffer("logits", f"rows * {VOCAB}", "output", "f32"),),
        temps=(buffer("sums", "tokens", "temp", offset="256"),),
        states=(buffer("kv", f"num_pages * {PAGE}", "state"),),
        arena_bytes="256 + align(tokens * 4, 64)",
        buckets=(Bucket(4, calls), Bucket(None, calls)),
    )


def argmax_program() -> Program:
    arguments = (*memory("logits", "turn", "landing", "ids"), *numbers("rows"))
    call = Call("best", ("rows", "1", "1"), arguments, "argmax")
    logits = buffer("logits", f"rows * {VOCAB}", "input", "f32")
    return Program(
        entry="argmax",
        symbols=("rows",),
        inputs=(logits, buffer("turn", "8", "input"), buffer("landing", "3 * rows", "input")),
        outputs=(buffer("ids", "rows", "output"),),
        temps=(), states=(), arena_bytes="0",
        buckets=(Bucket(None, (call,)),),
    )  # fmt: skip


def sample_program() -> Program:
    """The token top_k places after the likeliest one."""
    parameters = (buffer("top_k", "rows", "input"), buffer("uniform", "rows", "input", "f32"))
    arguments = (*memory("logits", "top_k", "uniform", "ids"), *numbers("rows"))
    return Program(
        entry="sample",
        symbols=("rows",),
        inputs=(buffer("logits", f"rows * {VOCAB}", "input", "f32"), *parameters),
        outputs=(buffer("ids", "rows", "output"),),
        temps=(), states=(), arena_bytes="0",
        buckets=(Bucket(None, (Call("draw", ("rows", "1", "1"), arguments, "sample"),)),),
    )  # fmt: skip


def place_program() -> Program:
    moved = ("token_ids", "positions", "slots")
    arguments = (*memory("turn", *moved, "seq_lens", "ids"), *numbers("tokens"))
    ones = ("turn", "seq_lens", "ids")
    return Program(
        entry="place_tokens",
        symbols=("tokens",),
        inputs=(
            *(buffer(name, "tokens", "input") for name in moved),
            *(buffer(name, "1", "input") for name in ones),
        ),
        outputs=(), temps=(), states=(), arena_bytes="0",
        buckets=(Bucket(None, (Call("place", ("1", "1", "1"), arguments, "place"),)),),
    )  # fmt: skip


def adjust_program() -> Program:
    """Bias, then the presence penalty, then forbidden tokens."""
    starts = "changed + 1"
    inputs = {
        "changed_rows": ("changed", "i32"), "bias_starts": (starts, "i32"),
        "bias_ids": ("biased", "i32"), "bias": ("biased", "f32"),
        "history_starts": (starts, "i32"), "history_ids": ("seen", "i32"),
        "counts": ("seen", "f32"), "penalties": ("3 * changed", "f32"),
        "forbidden_starts": (starts, "i32"), "forbidden_ids": ("forbidden", "i32"),
    }  # fmt: skip
    arguments = (*memory("logits", *inputs), *numbers("changed"))
    return Program(
        entry="adjust_logits",
        symbols=("changed", "biased", "seen", "forbidden"),
        inputs=(
            buffer("logits", f"{VOCAB}", "input", "f32"),
            *(buffer(name, size, "input", dtype) for name, (size, dtype) in inputs.items()),
        ),
        outputs=(), temps=(), states=(), arena_bytes="0",
        buckets=(Bucket(None, (Call("adjust", ("changed", "1", "1"), arguments, "adjust"),)),),
    )  # fmt: skip


def mask_program() -> Program:
    inputs = {"masked_rows": "masked", "masks": f"masked * {-(-VOCAB // 32)}"}
    arguments = (*memory("logits", *inputs), *numbers("masked"))
    return Program(
        entry="mask_logits",
        symbols=("masked",),
        inputs=(
            buffer("logits", f"{VOCAB}", "input", "f32"),
            *(buffer(name, size, "input") for name, size in inputs.items()),
        ),
        outputs=(), temps=(), states=(), arena_bytes="0",
        buckets=(Bucket(None, (Call("mask", ("1", "masked", "1"), arguments, "mask"),)),),
    )  # fmt: skip


PROGRAMS = (
    step_program(), argmax_program(), sample_program(), place_program(), adjust_program(),
    mask_program(),
)  # fmt: skip
PARAMS = {
    "write": ["*i32", "*i32", "*i32", "i32"],
    "attend": ["*i32", "*i32", "*i32", "*i32", "*i32", "i32", "i32", "i32"],
    "head": ["*i32", "*i32", "*bf16", "*fp32", "i32", "fp32"],
    "best": ["*fp32", "*i32", "*i32", "*i32", "i32"],
    "draw": ["*fp32", "*i32", "*fp32", "*i32", "i32"],
    "place": ["*i32", "*i32", "*i32", "*i32", "*i32", "*i32", "i32"],
    "adjust": [
        "*fp32", "*i32", "*i32", "*i32", "*fp32", "*i32", "*i32", "*fp32", "*fp32", "*i32", "*i32",
        "i32",
    ],
    "mask": ["*fp32", "*i32", "*i32", "i32"],
}  # fmt: skip


def pack(changes: Mapping[str, Mapping[str, object]] | None = None) -> bytes:
    kernels = {}
    for symbol, params in PARAMS.items():
        meta = {"entry": symbol, "num_warps": 4, "shared": 0, "params": params}
        meta |= (changes or {}).get(symbol, {})
        kernels[symbol] = PackedKernel(meta, f"cubin of {symbol}".encode())
    return write_pack(kernels)


def write_artifact(
    path: Path,
    programs: Sequence[Program] = PROGRAMS,
    kernels: bytes | None = None,
    isa: str = "sm_90",
    target: str = "cuda",
    plans: Mapping[str, bytes] | None = None,
) -> Artifact:
    """An artifact of the toy, opened."""
    with ArtifactWriter(path) as writer:
        weight = np.arange(VOCAB, dtype=np.uint16).tobytes()
        blob = writer.add_blob([weight])
        for program in programs:
            writer.add_bytes(f"programs/{program.entry}.json", program.to_json())
        for entry, plan in (plans or {}).items():
            writer.add_bytes(f"plans/{entry}.plan", plan)
        writer.add_bytes(f"kernels/{isa}.pack", pack() if kernels is None else kernels)
        variant = {"isa": isa, "library": f"kernels/{isa}.pack", "symbols": list(PARAMS)}
        record = {
            "blob": blob, "bytes": len(weight), "dtype": "bf16", "shape": [VOCAB],
            "layout": "row", "sections": {}, "sha256": blob.rpartition("/")[2],
        }  # fmt: skip
        writer.finish({
            "format": list(FORMAT), "features": [], "producer": "test",
            "model": {"name": "toy", "architecture": "toy", "vocab_size": VOCAB,
                      "context_length": 256, "num_layers": 1},
            "target": {"name": target, "page_size": PAGE, "variants": [variant]},
            "programs": {p.entry: f"programs/{p.entry}.json" for p in programs},
            "plans": {entry: f"plans/{entry}.plan" for entry in plans or {}},
            "weights": {"head": record},
        })  # fmt: skip
    return Artifact.open(path)


def ints(address: int, count: int) -> NDArray[np.int32]:
    """Device memory of the null driver."""
    return np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(address))


def floats(address: int, count: int) -> NDArray[np.float32]:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def write(grid: Grid, words: Sequence[int]) -> None:
    tokens = words[3]
    ids, slots = ints(words[0], tokens), ints(words[1], tokens)
    kv = ints(words[2], int(slots.max()) + 1)
    for token, slot in zip(ids, slots, strict=True):
        kv[slot] = token + 1


def attend(grid: Grid, words: Sequence[int]) -> None:
    seqs, pages, tokens = words[5:8]
    starts, lens = ints(words[0], seqs + 1), ints(words[1], seqs)
    table = ints(words[2], seqs * pages).reshape(seqs, pages)
    sums = ints(words[4], tokens)
    for seq in range(seqs):
        count = starts[seq + 1] - starts[seq]
        for number in range(count):
            length = lens[seq] - count + number + 1
            total = 0
            for position in range(length):
                slot = int(table[seq, position // PAGE]) * PAGE + position % PAGE
                total += int(ints(words[3] + 4 * slot, 1)[0])
            sums[starts[seq] + number] = total


def head(grid: Grid, words: Sequence[int]) -> None:
    rows = words[4]
    logits = floats(words[3], rows * VOCAB).reshape(rows, VOCAB)
    for row, at in enumerate(ints(words[1], rows)):
        logits[row] = 0
        logits[row, ints(words[0] + 4 * int(at), 1)[0] % VOCAB] = 1


def best(grid: Grid, words: Sequence[int]) -> None:
    rows, turn = words[4], ints(words[1], 6)
    ids = floats(words[0], rows * VOCAB).reshape(rows, VOCAB).argmax(1)
    ints(words[3], rows)[:] = ids
    _, _, _, num_slots, stride, slot = turn.tolist()
    ints(words[2] + 4 * slot * stride, rows)[:] = ids
    turn[[0, 2]] = 1, (slot + 1) % num_slots


def draw(grid: Grid, words: Sequence[int]) -> None:
    rows = words[4]
    logits = floats(words[0], rows * VOCAB).reshape(rows, VOCAB)
    ints(words[3], rows)[:] = (logits.argmax(1) + ints(words[1], rows) - 1) % VOCAB


def place(grid: Grid, words: Sequence[int]) -> None:
    turn, ids = ints(words[0], 6), ints(words[1], words[6])
    count = int(turn[0] * turn[1])
    for at, token in enumerate(ids):
        row = at if at < count else -1 - int(token)
        if row >= 0:
            ids[at] = ints(words[5] + 4 * row, 1)[0]
    for address in words[2:5]:
        ints(address, count)[:] += 1
    turn[5] = turn[2]


def adjust(grid: Grid, words: Sequence[int]) -> None:
    count = words[11]
    for number, row in enumerate(ints(words[1], count)):
        logits = floats(words[0] + 4 * VOCAB * int(row), VOCAB)
        low, high = ints(words[2] + 4 * number, 2)
        logits[ints(words[3], high)[low:]] += floats(words[4], high)[low:]
        low, high = ints(words[5] + 4 * number, 2)
        seen = ints(words[6], high)[low:][floats(words[7], high)[low:] > 0]
        logits[seen] -= floats(words[8], 3 * count)[3 * number + 2]
        low, high = ints(words[9] + 4 * number, 2)
        logits[ints(words[10], high)[low:]] = -np.inf


def mask(grid: Grid, words: Sequence[int]) -> None:
    size = -(-VOCAB // 32)
    for number, row in enumerate(ints(words[1], words[3])):
        logits = floats(words[0] + 4 * VOCAB * int(row), VOCAB)
        allowed = ints(words[2] + 4 * size * number, size).view(np.uint8)
        logits[np.unpackbits(allowed, count=VOCAB, bitorder="little") == 0] = -np.inf


KERNELS: dict[str, Kernel] = {
    "adjust": adjust, "mask": mask,
    "write": write, "attend": attend, "head": head, "best": best, "draw": draw, "place": place,
}  # fmt: skip


def next_token(tokens: Sequence[int]) -> int:
    """What the model says after these."""
    return (sum(tokens) + len(tokens)) % VOCAB


def batch(chunks: Sequence[tuple[Sequence[int], int, int]], width: int = 16) -> StepBatch:
    """Chunks (tokens of this step, first position, first page); sequences have pages in a row."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, lens = [0], []
    table = np.zeros((len(chunks), width), np.int32)
    for row, (tokens, start, page) in enumerate(chunks):
        end = start + len(tokens)
        used = -(-end // PAGE)
        table[row, :used] = range(page, page + used)
        ids += tokens
        positions += range(start, end)
        slots += [page * PAGE + position for position in range(start, end)]
        starts.append(len(ids))
        lens.append(end)
    used = max(-(-length // PAGE) for length in lens)
    return StepBatch(
        token_ids=np.array(ids, np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int32),
        query_start=np.array(starts, np.int32),
        seq_lens=np.array(lens, np.int32),
        page_table=np.ascontiguousarray(table[:, :used]),
        logit_rows=np.array(starts[1:], np.int32) - np.int32(1),
    )
