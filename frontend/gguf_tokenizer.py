r"""The tokenizer of a GGUF file as a tokenizer.json, built from its metadata.

A file stores vocabulary, merges or scores, and the name of how text is cut
(``tokenizer.ggml.pre``). The cut follows the model's own tokenizer.json where that is public, else
llama.cpp's rule of that name. It matters: transformers cuts SmolLM2's digits by GPT-2's rule, and
"a  1" comes out as other ids than the model was trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard, TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ..errors import FrontendError
from .tokenizer_files import TokenizerFiles, generation_facts

_Item = TypeVar("_Item")
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # llama.cpp's token types
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)


@dataclass(frozen=True)
class Cut:
    """How text is split before merging; `splits` are applied in turn, matches stay whole."""

    names: tuple[str, ...]
    splits: tuple[str, ...] = ()
    digits: bool = False
    """Each digit stands alone, then GPT-2's rule."""
    ignore_merges: bool = False
    """A word of the vocabulary is taken whole, whatever the merges say."""
    add_bos: bool = False
    """When the file does not say."""
    nfc: bool = False


_CUTS = (
    Cut(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        (_CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL,),
        ignore_merges=True,
        add_bos=True,
    ),
    Cut(
        ("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"),
        (_CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL,),
    ),
    Cut(("qwen2",), (_CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL,), nfc=True),
    Cut(
        ("deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo"),
        (_CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL,),
    ),
    Cut(
        ("tekken",),
        ("|".join(_CASED) + r"|\p{N}" + _SLASH_TAIL,),
        ignore_merges=True,
        add_bos=True,
    ),
    Cut(
        ("gpt-4o", "llama4"),
        ("|".join(f"{cased}{_CONTRACTION}?" for cased in _CASED) + r"|\p{N}{1,3}" + _SLASH_TAIL,),
    ),
    Cut(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        digits=True,
    ),
    Cut(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "a.x-4.0", "mellum"), (_GPT2,)),
    Cut(("default",), (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
)

# Control tokens that end a turn of a chat, whatever the file calls its end of sequence.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def tokenizer_from_gguf(
    path: Path, metadata: Mapping[str, object], vocab_size: int
) -> TokenizerFiles | None:
    """The tokenizer files; None when the file carries no vocabulary."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        return None
    vocabulary = _Vocabulary.read(path, metadata, vocab_size)
    if kind == "gpt2":
        cut = _cut(path, metadata)
        tokenizer, add_bos = _byte_level(vocabulary, cut), cut.add_bos
    elif kind == "llama":
        tokenizer, add_bos = _sentencepiece(vocabulary), True
    else:
        raise FrontendError(
            f"{path}: tokenizer.ggml.model: expected gpt2 or llama, got {kind!r} "
            "(use the model's Hugging Face folder)"
        )
    _add_special_tokens(tokenizer, vocabulary)
    template = metadata.get("tokenizer.chat_template")
    return TokenizerFiles(
        tokenizer_json=tokenizer.to_str().encode(),
        chat_template=template if isinstance(template, str) else None,
        generation=_generation(vocabulary, add_bos),
    )


@dataclass(frozen=True)
class _Vocabulary:
    """The checked lists of one file."""

    path: Path
    metadata: Mapping[str, object]
    tokens: list[str]
    types: list[int]

    @staticmethod
    def read(path: Path, metadata: Mapping[str, object], vocab_size: int) -> _Vocabulary:
        tokens = _texts(path, metadata, "tokens")
        if len(tokens) > vocab_size:
            raise FrontendError(
                f"{path}: expected at most {vocab_size} tokens, the rows of the embedding, "
                f"got {len(tokens)} (the tokenizer belongs to another model)"
            )
        if repeated := [token for token, times in Counter(tokens).items() if times > 1]:
            raise FrontendError(
                f"{path}: tokenizer.ggml.tokens: expected each once, got {repeated[:5]} again"
            )
        types: object = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
        if not _is_list_of(types, int) or len(types) != len(tokens):
            raise FrontendError(f"{path}: tokenizer.ggml.token_type: expected one for each token")
        return _Vocabulary(path, metadata, tokens, types)

    def ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def of_type(self, *types: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]

    def special_id(self, name: str) -> int | None:
        """The id under ``tokenizer.ggml.<name>_token_id``, if it is one."""
        value = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        is_id = isinstance(value, int) and not isinstance(value, bool)
        return value if is_id and 0 <= value < len(self.tokens) else None  # type: ignore[operator, return-value]

    def flag(self, name: str, default: bool) -> bool:
        value = self.metadata.get(f"tokenizer.ggml.{name}")
        return value if isinstance(value, bool) else default

    @property
    def is_gemma(self) -> bool:
        return str(self.metadata.get("general.architecture")).startswith("gemma")


def _is_list_of(value: object, *kinds: type[_Item]) -> TypeGuard[list[_Item]]:
    return isinstance(value, list) and all(isinstance(item, kinds) for item in value)


def _texts(path: Path, metadata: Mapping[str, object], name: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not value or not _is_list_of(value, str):
        raise FrontendError(f"{path}: tokenizer.ggml.{name}: expected a list of texts, got none")
    return value


def _cut(path: Path, metadata: Mapping[str, object]) -> Cut:
    name = metadata.get("tokenizer.ggml.pre", "default")
    for cut in _CUTS:
        if name in cut.names:
            return cut
    known = ", ".join(name for cut in _CUTS for name in cut.names)
    raise FrontendError(
        f"{path}: tokenizer.ggml.pre: expected one of {known}, got {name!r} "
        "(use the model's Hugging Face folder)"
    )


def _byte_level(vocabulary: _Vocabulary, cut: Cut) -> Tokenizer:
    """BPE over bytes: GPT-2 and its descendants."""
    ids = vocabulary.ids()
    merges = _merges(vocabulary, ids)
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=cut.ignore_merges))
    if cut.nfc:
        tokenizer.normalizer = normalizers.NFC()
    first = [pre_tokenizers.Digits(individual_digits=True)] if cut.digits else []
    splits = [pre_tokenizers.Split(Regex(text), "isolated") for text in cut.splits]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut.digits)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, *splits, last])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merges(vocabulary: _Vocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """The file's merges as pairs; the first space after the first character separates them."""
    pairs = []
    for text in _texts(vocabulary.path, vocabulary.metadata, "merges"):
        at = text.find(" ", 1)
        left, right = text[:at], text[at + 1 :]
        if at < 0 or left not in ids or right not in ids or left + right not in ids:
            raise FrontendError(
                f"{vocabulary.path}: tokenizer.ggml.merges: expected pairs of tokens that make a "
                f"token, got {text!r}"
            )
        pairs.append((left, right))
    return pairs


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    """BPE over characters with bytes to fall back on: Llama 1 and 2, Mistral, Gemma, Phi-3.

    The space in front of a text comes from a normalizer, as in those models' own files: it is put
    there even if the text starts with a space, which the Metaspace pre-tokenizer would not do.
    """
    tokens = vocabulary.tokens
    if vocabulary.is_gemma:  # runs of spaces are stored as spaces, but text has them as "▁"
        tokens = ["▁" * len(text) if not text.strip(" ") else text for text in tokens]
    ids = {token: index for index, token in enumerate(tokens)}
    unknown = vocabulary.special_id("unknown")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_implied_merges(vocabulary, ids),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = vocabulary.flag("add_space_prefix", default=True)
    steps = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _implied_merges(vocabulary: _Vocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to make a token from two, best score first; Gemma's order is that of its ids."""
    if "tokenizer.ggml.merges" in vocabulary.metadata:
        return _merges(vocabulary, ids)
    scores: Sequence[float] = [-float(index) for index in range(len(ids))]
    if not vocabulary.is_gemma:
        scores = _scores(vocabulary)
    special = set(vocabulary.of_type(_UNKNOWN, _CONTROL))
    found = []
    for token, index in ids.items():
        if token in special:
            continue
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                found.append((-scores[index], -len(left), left, right))
    found.sort(key=lambda row: row[:2])
    return [(left, right) for _, _, left, right in found]


def _scores(vocabulary: _Vocabulary) -> list[float]:
    scores = vocabulary.metadata.get("tokenizer.ggml.scores")
    if _is_list_of(scores, int, float) and len(scores) == len(vocabulary.tokens):
        return [float(score) for score in scores]
    raise FrontendError(
        f"{vocabulary.path}: tokenizer.ggml.scores: expected a score for each token, got none"
    )


def _add_special_tokens(tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    """Control and user-defined tokens are matched whole in text; only the former are special."""
    is_spm = vocabulary.metadata.get("tokenizer.ggml.model") == "llama"
    known = tokenizer.get_vocab()
    # Phi-3's turn markers swallow the space after them: its tokenizer.json and llama.cpp agree.
    is_phi3 = is_spm and vocabulary.metadata.get("general.architecture") == "phi3"
    keeps_space = {"<unk>", "<s>", "<|endoftext|>"} if is_phi3 else set(vocabulary.tokens)
    control = vocabulary.of_type(_CONTROL, _UNKNOWN) if is_spm else vocabulary.of_type(_CONTROL)
    tokenizer.add_special_tokens(
        [
            AddedToken(text, normalized=False, special=True, rstrip=text not in keeps_space)
            for text in control
            if text in known
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(text, normalized=False, special=False)
            for text in vocabulary.of_type(_USER_DEFINED)
            if text in known
        ]
    )


def _generation(vocabulary: _Vocabulary, add_bos: bool) -> dict[str, object]:
    ids = vocabulary.ids()
    control = set(vocabulary.of_type(_CONTROL))
    ends = [vocabulary.special_id(name) for name in ("eos", "eot", "eom")]
    ends += [ids[text] for text in _END_OF_TURN if text in control]
    given = {
        name: vocabulary.metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()
    }
    return generation_facts(
        eos=[index for index in ends if index is not None],
        bos=vocabulary.special_id("bos"),
        add_bos=vocabulary.flag("add_bos_token", add_bos),
        defaults={key: value for key, value in given.items() if isinstance(value, (int, float))},
    )
