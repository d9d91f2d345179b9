"""Counts of n-grams, of texts that are numbers already."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch

from .registry import Node, Tensor, Value, op, outside_trace


@op("TfIdfVectorizer")
def tf_idf(node: Node, x: Tensor) -> Value:
    """How often each n-gram of the pool occurs, with up to ``max_skip_count`` places between its
    words."""
    if not node.attrs.get("pool_int64s"):
        node.refuse("expected pool_int64s, got n-grams that are texts")
    mode, length = node.attrs["mode"], int(x.shape[-1])
    places = list(node.attrs["ngram_indexes"])
    rows = x.reshape(-1, length)
    counts = torch.zeros((rows.shape[0], max(places) + 1), dtype=torch.float32)
    for first, grams in _grams(node):
        found = torch.zeros((rows.shape[0], len(grams)), dtype=torch.float32)
        for step in _steps(node, grams.shape[1], length):
            found = found + _matches(rows, grams, step)
        with outside_trace():
            where = torch.tensor(places[first : first + len(grams)], dtype=torch.int64)
        counts = counts.index_add(1, where, found)
    return _weighted(node, counts, mode).reshape(*x.shape[:-1], counts.shape[1])


def _grams(node: Node) -> Iterator[tuple[int, np.ndarray]]:
    """Per length: where its n-grams begin in the list of all, and the n-grams [count, n]."""
    starts = [*node.attrs["ngram_counts"], len(node.attrs["pool_int64s"])]
    shortest, longest = node.attrs["min_gram_length"], node.attrs["max_gram_length"]
    first = 0
    for n, (start, stop) in enumerate(itertools.pairwise(starts), 1):
        grams = np.array(node.attrs["pool_int64s"][start:stop], np.int64).reshape(-1, n)
        if shortest <= n <= longest and len(grams):
            yield first, grams
        first += len(grams)


def _steps(node: Node, n: int, length: int) -> list[int]:
    """Distances between words for which a window fits; of one word there is one."""
    most = 1 if n == 1 else node.attrs["max_skip_count"] + 1
    return [step for step in range(1, most + 1) if (n - 1) * step < length]


def _matches(rows: Tensor, grams: np.ndarray, step: int) -> Tensor:
    """[rows, n-grams]: in how many windows each stands."""
    n = grams.shape[1]
    windows = rows.shape[1] - (n - 1) * step
    same: Tensor | None = None
    for k in range(n):
        with outside_trace():
            word = torch.tensor(grams[:, k].tolist(), dtype=rows.dtype)
        hit = rows[:, k * step : k * step + windows].unsqueeze(-1) == word
        same = hit if same is None else same & hit
    assert same is not None
    return same.to(torch.float32).sum(1)


def _weighted(node: Node, counts: Tensor, mode: str) -> Tensor:
    """TF: counts. IDF: whether there are any, times the weight. TFIDF: counts times weights."""
    if mode not in ("TF", "IDF", "TFIDF"):
        node.refuse(f"expected mode TF, IDF or TFIDF, got {mode!r}")
    value = (counts > 0).to(torch.float32) if mode == "IDF" else counts
    weights = node.attrs.get("weights")
    if mode == "TF" or not weights:
        return value
    by_place = np.ones(int(counts.shape[1]))
    by_place[list(node.attrs["ngram_indexes"])] = weights
    with outside_trace():
        factors = torch.tensor(by_place.tolist(), dtype=torch.float32)
    return value * factors
