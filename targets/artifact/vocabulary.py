"""``tokenizer/vocabulary.bin``: a BPE vocabulary as tables that are looked up where they lie.

Reading a tokenizer.json makes an entry for each of 50,000 to 260,000 tokens and as many merges,
which takes most of the time to a first token; a prompt of one line needs a few hundred of them.
The file holds tokens by id, a hash of each for finding all tokens within a text at once, merges by
the token they make, and what else the tokenizer.json says (``shell``). All of it is derived from
the tokenizer.json beside it, which stays the tokenizer of the artifact.

Layout: 8 bytes of length, so many bytes of JSON (``shell``, and the tables as dtype, first byte and
count), padding to 8 bytes, tables. Everything is little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArtifactError

VOCABULARY = "tokenizer/vocabulary.bin"
_WHERE = "vocabulary.bin"
_ALIGNMENT = 8
_BASE = np.uint64(0x9E3779B97F4A7C15)
"""Base of the polynomial over code points, modulo 2**64, that is a token's hash."""
_FLAGS = ("special", "single_word", "lstrip", "rstrip", "normalized")
"""Bits of an added token, from the lowest."""
_OUTSIDE = 1 << len(_FLAGS)
"""The bit of one that is no token of the model: it comes up where it is found in a text alone."""
_TABLES = {
    "text": "<u1",  # UTF-8 of all tokens by id
    "ends": "<u4",  # where each ends
    "hashes": "<u8",  # of the tokens there are, sorted
    "hashed": "<u4",  # the token of each hash
    "lengths": "<u4",  # code points that a token can have, sorted
    "merge_ends": "<u4",  # where the merges that make each token end
    "merge_left": "<u4",  # first token of each merge
    "merge_rank": "<u4",  # a lower one is merged first
    "added": "<u4",  # ids of added tokens, in the order of the tokenizer.json
    "flags": "<u1",
}


def make_vocabulary(tokenizer_json: bytes) -> bytes | None:
    """The tables of a tokenizer.json; None for a kind of model that they cannot hold.

    That is any but byte-pair encoding without dropout, word prefixes and word suffixes.
    """
    content = json.loads(tokenizer_json)
    model = content["model"]
    marks = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    if model.get("type") != "BPE" or any(model.get(mark) for mark in marks):
        return None
    added = content.get("added_tokens", [])
    ids = model["vocab"] | {token["content"]: token["id"] for token in added}
    merges = [_parts(merge) for merge in model["merges"]]
    if not ids or any(part not in ids for pair in merges for part in (*pair, "".join(pair))):
        return None
    rest = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    tables = _token_tables(ids) | _merge_tables(ids, merges)
    tables["added"] = np.array([token["id"] for token in added], "<u4")
    tables["flags"] = np.array([_pack_flags(token, model["vocab"]) for token in added], "<u1")
    return _pack(content | {"added_tokens": [], "model": rest}, tables)


def _parts(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _pack_flags(token: Mapping[str, Any], vocabulary: Container[str]) -> int:
    flags = sum(bool(token[flag]) << bit for bit, flag in enumerate(_FLAGS))
    return flags if token["content"] in vocabulary else flags | _OUTSIDE


def _token_tables(ids: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    texts = [""] * (max(ids.values()) + 1)
    for text, token in ids.items():
        texts[token] = text
    data = [text.encode() for text in texts]
    by_length: dict[int, list[int]] = {}
    for token, text in enumerate(texts):
        if text:
            by_length.setdefault(len(text), []).append(token)
    hashes = np.zeros(len(texts), np.uint64)
    for length, tokens in by_length.items():
        points = code_points("".join(texts[token] for token in tokens)).reshape(-1, length)
        hashes[tokens] = next(h for n, h in _hashes(points.T, length) if n == length)
    hashed = np.concatenate([np.array(tokens, "<u4") for tokens in by_length.values()])
    order = np.argsort(hashes[hashed], kind="stable")
    return {
        "text": np.frombuffer(b"".join(data), "<u1"),
        "ends": np.cumsum([len(each) for each in data], dtype="<u4"),
        "hashes": hashes[hashed][order].astype("<u8"),
        "hashed": hashed[order],
        "lengths": np.array(sorted(by_length), "<u4"),
    }


def _merge_tables(
    ids: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> dict[str, NDArray[Any]]:
    made = np.array([ids[left + right] for left, right in merges], np.int64)
    lefts = np.array([ids[left] for left, _ in merges], "<u4")
    order = np.argsort(made, kind="stable")
    counts = np.bincount(made, minlength=max(ids.values()) + 1)
    return {
        "merge_ends": np.cumsum(counts, dtype="<u4"),
        "merge_left": lefts[order],
        "merge_rank": order.astype("<u4"),
    }


def _pack(shell: Mapping[str, Any], tables: Mapping[str, NDArray[Any]]) -> bytes:
    places, at = {}, 0
    for name, table in tables.items():
        places[name] = [at, len(table)]
        at += table.nbytes + -table.nbytes % _ALIGNMENT
    header = json.dumps({"shell": shell, "tables": places}, ensure_ascii=False).encode()
    parts = [len(header).to_bytes(8, "little"), header, b"\0" * (-len(header) % _ALIGNMENT)]
    for table in tables.values():
        parts += [table.tobytes(), b"\0" * (-table.nbytes % _ALIGNMENT)]
    return b"".join(parts)


def code_points(text: str) -> NDArray[np.uint64]:
    """Code points of a text, [len(text)]; each stands for itself plus one, so that none is 0."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.uint64) + np.uint64(1)


def _hashes(points: NDArray[np.uint64], longest: int) -> Iterable[tuple[int, NDArray[np.uint64]]]:
    """Lengths up to ``longest``, each with the hash of every run of so many code points."""
    found = np.zeros_like(points)
    for length in range(1, min(longest, len(points)) + 1):
        found = found[: len(points) - length + 1] * _BASE + points[length - 1 :]
        yield length, found[0] if points.ndim > 1 else found


class VocabularyTables:
    """The tables of a mapped file; nothing is read before it is asked for."""

    def __init__(self, data: memoryview) -> None:
        size = int.from_bytes(data[:8], "little")
        start = 8 + size + -size % _ALIGNMENT
        if len(data) < 8 or start > len(data):
            raise ArtifactError(f"{_WHERE}: expected a header, got {len(data)} bytes")
        try:
            header = json.loads(bytes(data[8 : 8 + size]))
            self.shell: dict[str, Any] = header["shell"]
            """The tokenizer.json without vocabulary, merges and added tokens."""
            places = {name: header["tables"][name] for name in _TABLES}
            tables = {
                name: np.frombuffer(data[start:], _TABLES[name], count, at)
                for name, (at, count) in places.items()
            }
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{_WHERE}: expected tables of tokens, got: {error}") from error
        self._tables = tables
        self._text = data[start:]
        self._added = {int(token): int(flag) for token, flag in zip(*self._pairs(), strict=True)}
        self._outside = {token for token, flags in self._added.items() if flags & _OUTSIDE}

    def _pairs(self) -> tuple[list[int], list[int]]:
        return self._tables["added"].tolist(), self._tables["flags"].tolist()

    @property
    def num_ids(self) -> int:
        """One more than the highest id."""
        return len(self._tables["ends"])

    @property
    def special_ids(self) -> frozenset[int]:
        """Added tokens that are no text."""
        return frozenset(token for token, flags in self._added.items() if flags & 1)

    def token(self, token_id: int) -> str | None:
        """The name of a token; None where the vocabulary has none."""
        ends = self._tables["ends"]
        if not 0 <= token_id < len(ends):
            return None
        start = int(ends[token_id - 1]) if token_id else 0
        return bytes(self._text[start : int(ends[token_id])]).decode() or None

    def within(self, text: str) -> dict[str, int]:
        """All tokens whose name is somewhere in a text, with their ids."""
        hashes, hashed = self._tables["hashes"], self._tables["hashed"]
        lengths = self._tables["lengths"]
        wanted, found = set(lengths.tolist()), {}
        for length, runs in _hashes(code_points(text), int(lengths[-1])):
            if length not in wanted:
                continue
            places = np.minimum(np.searchsorted(hashes, runs), len(hashes) - 1)
            for at in np.flatnonzero(hashes[places] == runs).tolist():
                token_id, name = int(hashed[places[at]]), text[at : at + length]
                if self.token(token_id) == name:
                    found[name] = token_id
        return found

    def model_tokens(self, text: str) -> dict[str, int]:
        """Of the tokens `within` a text those that the model itself may choose."""
        return {name: at for name, at in self.within(text).items() if at not in self._outside}

    def merges(self, tokens: Mapping[str, int]) -> list[tuple[str, str]]:
        """The merges that make these tokens, the first ones first; their parts are among them."""
        ends, lefts = self._tables["merge_ends"], self._tables["merge_left"]
        ranks = self._tables["merge_rank"]
        ranked = []
        for name, token_id in tokens.items():
            start = int(ends[token_id - 1]) if token_id else 0
            for at in range(start, int(ends[token_id])):
                left = self.token(int(lefts[at])) or ""
                ranked.append((int(ranks[at]), (left, name[len(left) :])))
        return [pair for _, pair in sorted(ranked)]

    def added_tokens(self, text: str) -> list[dict[str, Any]]:
        """As in a tokenizer.json: the added tokens that are in a text, or may match another form
        of it."""
        inside = set(self.within(text).values())
        may_match = 1 << _FLAGS.index("normalized")
        return [
            {"id": token, "content": self.token(token)}
            | {flag: bool(flags >> bit & 1) for bit, flag in enumerate(_FLAGS)}
            for token, flags in self._added.items()
            if token in inside or flags & may_match
        ]
