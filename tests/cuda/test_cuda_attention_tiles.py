"""Parts of decoded sequences and tiles of prompts for sizes that were measured."""

from __future__ import annotations

from sglk.ir.dim import Dim, dim, substitute
from sglk.targets.cuda.attention_tiles import (
    LONG,
    LONG_POINTERS,
    NARROW_LONG,
    SHORT,
    WIDE,
    WIDE_DECODE,
    decode_tile,
    has_decode,
    prompt_tile,
    prompt_tiles,
    splits,
)
from sglk.targets.cuda.facts import chips_named, cuda_target


def parts(seqs: int, pages: int) -> Dim:
    return substitute(splits(132, 64, 8, dim("seqs"), dim("pages")), {"seqs": seqs, "pages": pages})


def test_one_program_for_each_multiprocessor() -> None:
    assert parts(1, 4) == 1  # 256 keys: a second launch takes as long as it saves
    assert parts(1, 16) == 7
    assert parts(1, 128) == 16
    assert parts(8, 128) == 4
    assert parts(64, 4) == parts(64, 16) == parts(256, 16) == 1
    assert parts(64, 256) == 8  # one may be long among many short ones


def test_steps_launch_only_the_attention_they_need() -> None:
    def of(tokens: int, seqs: int) -> tuple[Dim, Dim]:
        sizes: dict[str, Dim] = {"tokens": tokens, "seqs": seqs}
        decode = has_decode(dim("tokens"), dim("seqs"))
        prompts = prompt_tiles(dim("tokens"), dim("seqs"), 4, 64)
        return substitute(decode, sizes), substitute(prompts, sizes)

    assert of(1, 1) == (1, 0)
    assert of(8, 8) == (1, 0)
    assert of(512, 1) == (0, 33)
    assert of(64, 4) == (1, 8)


def test_prompt_tiles_follow_steps_and_heads() -> None:
    h200, a100 = (cuda_target(chips_named([arch])) for arch in ("sm90", "sm80"))
    assert prompt_tile(h200, 512, 128) == SHORT
    assert prompt_tile(h200, 2048, 128) == prompt_tile(h200, None, 128) == LONG
    assert prompt_tile(a100, None, 128) == LONG_POINTERS
    assert prompt_tile(h200, None, 64) == NARROW_LONG
    assert prompt_tile(h200, 512, 256) == WIDE


def test_many_programs_keep_their_registers_for_others() -> None:
    h200 = cuda_target(chips_named(["sm90"]))
    ahead = [decode_tile(h200, tokens, 8, 128).ahead for tokens in (2, 16, 32, 64, 128, None)]
    assert ahead == [4, 4, 2, 0, 0, 0]
    limits = [decode_tile(h200, tokens, 8, 128).max_registers for tokens in (16, 64, None)]
    assert limits == [None, 128, 128]
    assert decode_tile(h200, 256, 4, 256) == WIDE_DECODE
