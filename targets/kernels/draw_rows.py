"""A token for each row of logits by the runtime's rules, for GPUs.

The rules are those of runtime/sampler.py and runtime/truncation.py: a row is read as x = (logit -
largest) / temperature; "most likely" orders by x, then by lowest id; top-k, top-p and min-p cut in
that order; the uniform number picks from what is left, in order of token id, weights exp(x) of kept
tokens in f64. The result is theirs unless a cut or the draw falls within a rounding of a boundary.

Layouts: logits f32 or bf16 [rows, VOCAB]; per row top_k i32 (0: off; 1: greedy), temperature f32
(above 0), lowest f32 (log of min_p; -inf: off), top_p (1: off) and uniform f32 or f64; tokens i32
[rows], -1 for a row with NaN or without a finite largest logit.
Between the two kernels, for groups of 64 neighbouring tokens, GROUPS = CHUNK / 64 * cdiv(VOCAB,
CHUNK):
  largest, mass  f32 [rows, GROUPS]: the largest logit, and the sum of exp((logit - the largest
                 of its CHUNK) / temperature)
  lists          i32 [rows, GROUPS + ROOM]: groups, then tokens, that may survive the cuts
Grid: group_rows (GROUPS * 64 / CHUNK, rows, 1), then draw_rows (rows, 1, 1).

`draw_rows` finds from the groups a floor that every token which survives reaches: at least k groups
have a largest above it (top-k), or the largest of the groups above it weigh enough (top-p). Tokens
above it are listed in order of id; nothing is sorted. A cut is a search for the bits of -x, which
grow as a token gets less likely: 31 passes over the list, most often of one TILE. Where more than
ROOM tokens are above the floor, the passes go over the whole row: slow, right, and rare.
Limits: CHUNK, TILE, BLOCK powers of two; BLOCK >= GROUPS, CHUNK >= 64, TILE >= 64; ROOM >= TILE.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .argmax_rows import NONE, nan_as_infinity

GROUP = tl.constexpr(64)


@triton.jit
def group_rows(
    logits, top_k, temperature, largest, mass,
    VOCAB: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """largest and mass of the groups of one CHUNK of one row."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    part = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    g = tl.arange(0, CHUNK // GROUP)
    i = part * CHUNK + g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits + row * VOCAB + i, mask=i < VOCAB, other=float("-inf")).to(tl.float32)
    x = nan_as_infinity(x)
    most = tl.max(x, 1)
    at = (row * tl.num_programs(0) + part) * (CHUNK // GROUP)
    tl.store(largest + at + g, most)
    if tl.load(top_k + row) != 1:
        top = tl.maximum(tl.max(most, 0), -3.0e38)  # a chunk of -inf only has no weight
        weight = tl.exp((x - top) / tl.load(temperature + row))
        tl.store(mass + at + g, tl.sum(weight, 1))


@triton.jit
def rank_of(x):
    """Bits of -x for x at most 0: the larger, the less likely."""
    return tl.abs(x).to(tl.int32, bitcast=True)


@triton.jit
def scaled(logit, top, heat):
    return tl.div_rn(logit - top, heat)


@triton.jit
def read_tile(
    logits, tokens, count, is_listed, at, top, heat, VOCAB: tl.constexpr, TILE: tl.constexpr
):
    """ids, x and truth of TILE candidates: of the list, or of the whole row."""
    j = at + tl.arange(0, TILE)
    is_real = j < count
    token = j
    if is_listed:
        token = tl.load(tokens + j, mask=is_real, other=0)
    logit = tl.load(logits + token, mask=is_real, other=float("-inf")).to(tl.float32)
    return token, scaled(logit, top, heat), is_real


@triton.jit
def is_within(x, token, rank, last):
    """Whether a token is among the most likely ones, up to (rank, last)."""
    own = rank_of(x)
    return (own < rank) | ((own == rank) & (token <= last))


@triton.jit
def amount(
    logits, tokens, count, is_listed, top, heat, rank, last, limit, lowest, HEAVY: tl.constexpr,
    VOCAB: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """How many candidates up to (rank, last) have a rank up to `limit`, or what they weigh."""
    # one sum for each lane, added up at the end: a pass over a whole row waits for nothing else
    total = tl.zeros((TILE,), tl.float64)
    for at in range(0, count, TILE):
        token, x, is_real = read_tile(logits, tokens, count, is_listed, at, top, heat, VOCAB, TILE)
        kept = is_real & is_within(x, token, rank, last) & (rank_of(x) <= limit) & (x >= lowest)
        if HEAVY:
            total += tl.where(kept, tl.exp(x.to(tl.float64)), 0.0)
        else:
            total += kept.to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def nth_tie(
    logits, tokens, count, is_listed, top, heat, rank, last, n,
    VOCAB: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The id of the n-th candidate of this rank, not beyond `last`, counted from 1."""
    found = tl.minimum(last, NONE)
    before = 0
    for at in range(0, count, TILE):
        token, x, is_real = read_tile(logits, tokens, count, is_listed, at, top, heat, VOCAB, TILE)
        tie = is_real & (rank_of(x) == rank)
        order = before + tl.cumsum(tie.to(tl.int32), 0)
        found = tl.minimum(found, tl.min(tl.where(tie & (order == n), token, NONE), 0))
        before += tl.sum(tie.to(tl.int32), 0)
    return found


@triton.jit
def cut(
    logits, tokens, count, is_listed, top, heat, rank, last, goal, HEAVY: tl.constexpr,
    VOCAB: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """(rank, last) of the fewest most likely candidates that are, or weigh, at least `goal`."""
    limit = 0
    for step in range(31):
        bit = 1 << (30 - step)
        reached = amount(
            logits, tokens, count, is_listed, top, heat, rank, last, limit + (bit - 1),
            float("-inf"), HEAVY, VOCAB, TILE,
        )  # fmt: skip
        limit = tl.where(reached < goal, limit + bit, limit)
    below = amount(
        logits, tokens, count, is_listed, top, heat, rank, last, limit - 1, float("-inf"),
        HEAVY, VOCAB, TILE,
    )  # fmt: skip
    if HEAVY:
        x = -limit.to(tl.float32, bitcast=True)
        each = tl.maximum(tl.exp(x.to(tl.float64)), 1e-300)
        wanted = tl.ceil(tl.minimum((goal - below) / each, 1e9)).to(tl.int32)
        wanted = tl.maximum(wanted, 1)
    else:
        wanted = (goal - below).to(tl.int32)
    is_cut = limit < NONE
    held = tl.where(rank == limit, last, NONE)
    tie = nth_tie(logits, tokens, count, is_listed, top, heat, limit, held, wanted, VOCAB, TILE)
    return tl.where(is_cut, limit, rank), tl.where(is_cut, tie, last)


@triton.jit
def group_floor(rank, weight, goal, HEAVY: tl.constexpr):
    """A rank that enough groups reach; NONE when all of them are too few or too light."""
    limit = 0
    for step in range(31):
        bit = 1 << (30 - step)
        kept = rank <= limit + (bit - 1)
        if HEAVY:
            reached = tl.sum(tl.where(kept, weight, 0.0), 0)
        else:
            reached = tl.sum(kept.to(tl.int32), 0).to(tl.float32)
        limit = tl.where(reached < goal, limit + bit, limit)
    return limit


@triton.jit
def list_tokens(
    logits, groups, tokens, is_near, floor, top, heat,
    VOCAB: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Lists the tokens of the near groups that reach the floor; their number, maybe beyond ROOM."""
    g = tl.arange(0, BLOCK)
    order = tl.cumsum(is_near.to(tl.int32), 0) - 1
    num_groups = tl.sum(is_near.to(tl.int32), 0)
    tl.store(groups + order, g, mask=is_near)
    tl.debug_barrier()
    lane = tl.arange(0, TILE)
    count = 0
    for at in range(0, num_groups, TILE // GROUP):
        which = at + lane // GROUP
        group = tl.load(groups + which, mask=which < num_groups, other=0)
        token = group * GROUP + lane % GROUP
        inside = (which < num_groups) & (token < VOCAB)
        logit = tl.load(logits + token, mask=inside, other=float("-inf")).to(tl.float32)
        near = inside & (rank_of(scaled(logit, top, heat)) <= floor)
        place = count + tl.cumsum(near.to(tl.int32), 0) - 1
        tl.store(tokens + place, token, mask=near & (place < ROOM))
        count += tl.sum(near.to(tl.int32), 0)
    tl.debug_barrier()
    return count


@triton.jit
def pick(
    logits, tokens, count, is_listed, top, heat, rank, last, lowest, uniform,
    VOCAB: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The first kept token, by id, whose running weight exceeds uniform * the total."""
    total = amount(
        logits, tokens, count, is_listed, top, heat, rank, last, NONE, lowest, True, VOCAB, TILE
    )
    goal = uniform * total
    before = tl.full((), 0.0, tl.float64)
    chosen = NONE + 0
    heaviest = 0  # the last token of any weight: where rounding ends up
    for at in range(0, count, TILE):
        token, x, is_real = read_tile(logits, tokens, count, is_listed, at, top, heat, VOCAB, TILE)
        kept = is_real & is_within(x, token, rank, last) & (x >= lowest)
        weight = tl.where(kept, tl.exp(x.to(tl.float64)), 0.0)
        running = before + tl.cumsum(weight, 0)
        has_weight = weight > 0.0
        chosen = tl.minimum(chosen, tl.min(tl.where(has_weight & (running > goal), token, NONE), 0))
        heaviest = tl.maximum(heaviest, tl.max(tl.where(has_weight, token, 0), 0))
        before += tl.sum(weight, 0)
    return tl.where(chosen < NONE, chosen, heaviest)


@triton.jit
def pick_from_all(logits, share, top, heat, uniform, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The same draw with no cut: first a group, by `share` f64 [BLOCK], then a token of it."""
    g = tl.arange(0, BLOCK)
    goal = uniform * tl.sum(share, 0)
    running = tl.cumsum(share, 0)
    has_weight = share > 0.0
    group = tl.min(tl.where(has_weight & (running > goal), g, BLOCK), 0)
    group = tl.where(group < BLOCK, group, tl.max(tl.where(has_weight, g, 0), 0))
    before = tl.sum(tl.where(g < group, share, 0.0), 0)
    token = group * GROUP + tl.arange(0, GROUP)
    logit = tl.load(logits + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
    weight = tl.exp(scaled(logit, top, heat).to(tl.float64))
    passed = (weight > 0.0) & (before + tl.cumsum(weight, 0) > goal)
    chosen = tl.min(tl.where(passed, token, NONE), 0)
    return tl.where(chosen < NONE, chosen, tl.max(tl.where(weight > 0.0, token, 0), 0))


@triton.jit
def first_of(logits, largest, top, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The lowest id of the largest logit; `largest` [BLOCK] of the groups."""
    group = tl.min(tl.where(largest == top, tl.arange(0, BLOCK), BLOCK), 0)
    token = group * GROUP + tl.arange(0, GROUP)
    logit = tl.load(logits + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
    return tl.min(tl.where(logit == top, token, NONE), 0)


@triton.jit
def choose(
    logits, groups, tokens, most, share, top, heat, k, p, lowest, uniform,
    VOCAB: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A token by top-k, top-p and min-p; `most` and `share` [BLOCK] are of the groups."""
    near = rank_of(scaled(most, top, heat))
    is_short = (k > 0) & (k < VOCAB)
    floor = NONE + 0
    if is_short:
        floor = group_floor(near, near, k.to(tl.float32), False)
    else:
        if p < 1.0:
            weight = tl.exp(scaled(most, top, heat))
            # a little more than needed: sums here and there round differently
            goal = (p * tl.sum(share, 0) * 1.00001).to(tl.float32)
            floor = group_floor(near, weight, goal, True)
    if (lowest > float("-inf")) & (not is_short) & (p >= 1.0):
        floor = rank_of(lowest)
    count = list_tokens(
        logits, groups, tokens, near <= floor, floor, top, heat, VOCAB, ROOM, BLOCK, TILE
    )
    is_listed = count <= ROOM
    count = tl.where(is_listed, count, VOCAB)
    rank = NONE + 0
    last = NONE + 0
    if is_short:
        rank, last = cut(
            logits, tokens, count, is_listed, top, heat, rank, last, k.to(tl.float64), False,
            VOCAB, TILE,
        )  # fmt: skip
    if p < 1.0:
        goal = p * tl.sum(share, 0)
        if is_short:
            goal = p * amount(
                logits, tokens, count, is_listed, top, heat, rank, last, NONE, float("-inf"), True,
                VOCAB, TILE,
            )  # fmt: skip
        rank, last = cut(
            logits, tokens, count, is_listed, top, heat, rank, last, goal, True, VOCAB, TILE
        )
    return pick(
        logits, tokens, count, is_listed, top, heat, rank, last, lowest, uniform, VOCAB, TILE
    )


@triton.jit
def draw_rows(
    logits, top_k, temperature, lowest, top_p, uniform, largest, mass, lists, tokens,
    VOCAB: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token per row; see the top of the file."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    GROUPS: tl.constexpr = (VOCAB + CHUNK - 1) // CHUNK * (CHUNK // GROUP)
    row = tl.program_id(0).to(tl.int64)
    g = tl.arange(0, BLOCK)
    logits += row * VOCAB
    most = tl.load(largest + row * GROUPS + g, mask=g < GROUPS, other=float("-inf"))
    top = tl.max(most, 0)
    token = -1
    if tl.abs(top) < float("inf"):
        k = tl.load(top_k + row)
        if k == 1:
            token = first_of(logits, most, top, VOCAB, BLOCK)
        else:
            heat = tl.load(temperature + row)
            u = tl.load(uniform + row).to(tl.float64)
            p = tl.load(top_p + row).to(tl.float64)
            least = tl.load(lowest + row)
            weight = tl.load(mass + row * GROUPS + g, mask=g < GROUPS, other=0.0)
            chunk_top = tl.max(most.reshape(BLOCK * GROUP // CHUNK, CHUNK // GROUP), 1)
            chunk_top = tl.maximum(chunk_top, -3.0e38)[:, None]
            chunk_top = tl.broadcast_to(chunk_top, (BLOCK * GROUP // CHUNK, CHUNK // GROUP))
            ratio = tl.exp(scaled(chunk_top, top, heat).to(tl.float64)).reshape(BLOCK)
            share = weight.to(tl.float64) * ratio
            is_plain = ((k <= 0) | (k >= VOCAB)) & (p >= 1.0) & (least == float("-inf"))
            if is_plain:
                token = pick_from_all(logits, share, top, heat, u, VOCAB, BLOCK)
            else:
                groups = lists + row * (GROUPS + ROOM)
                token = choose(
                    logits, groups, groups + GROUPS, most, share, top, heat, k, p, least, u,
                    VOCAB, ROOM, BLOCK, TILE,
                )  # fmt: skip
    tl.store(tokens + row, token)
