"""Tokenizers built from GGUF metadata give the ids that the model was trained on."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglk.errors import FrontendError
from sglk.frontend.gguf_header import read_header
from sglk.frontend.gguf_tokenizer import tokenizer_from_gguf
from sglk.frontend.model_files import open_model
from sglk.frontend.tokenizer_files import TokenizerFiles
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

CORPUS = [
    "",
    "Hello, world! It's the 1st test; don't panic (or do).",
    "The quick brown fox jumps over 13 lazy dogs in 2024, at 3.14159 km/h.",
    'def f(x: int) -> int:\n    """Doc."""\n\treturn x ** 2  # 100%\n\n\nprint(f(42))\n',
    "#include <stdio.h>\nint main(void) { return 0x7fff & ~1; }\r\n",
    "人工智能正在改变世界，我们应当在2024年之前做好准备。你好！",
    "日本語のテキスト、한국어, العربية, Привет мир, हिन्दी, ½ ² Ⅷ ٣",
    "😀👨‍👩‍👧‍👦🏳️‍🌈 emoji \u200b zero width, e\u0301 combining, nbsp\u00a0here",
    "  leading,   inner    and trailing   \n\n  \t\t mixed \n \n",
    "a  1   22    333 \n4444",
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>text<|im_end|> <|not_a_token|> <repo_name>x<|im_start|>",
    "x" * 300 + " " * 50 + "!" * 30,
]
DIGITLESS = [text for text in CORPUS if not any(char.isnumeric() for char in text)]


def tokenizer_of(files: TokenizerFiles | None) -> Tokenizer:
    assert files is not None
    return Tokenizer.from_buffer(files.tokenizer_json)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def built(**changes: Any) -> TokenizerFiles:
    """The files from hand-made metadata; keys are those after ``tokenizer.ggml.``."""
    metadata = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    metadata |= {"general.architecture": "llama", "tokenizer.chat_template": "{{ x }}"}
    files = tokenizer_from_gguf(Path("m.gguf"), metadata, vocab_size=1000)
    assert files is not None
    return files


BYTES = list(bytes_to_unicode().values())  # type: ignore[no-untyped-call]
BYTE_LEVEL: dict[str, Any] = {
    "model": "gpt2",
    "pre": "qwen2",
    "tokens": [*BYTES, "ab", "abc", "<eos>", "<think>"],
    "token_type": [1] * 258 + [3, 4],
    "merges": ["a b", "ab c"],
    "eos_token_id": 258,
}


@pytest.fixture(scope="module")
def smollm2_files(smollm2_gguf: Path) -> TokenizerFiles:
    metadata = read_header(smollm2_gguf).metadata
    files = tokenizer_from_gguf(smollm2_gguf, metadata, vocab_size=49152)
    assert files is not None
    return files


@pytest.fixture(scope="module")
def transformers_tokenizer(smollm2_gguf: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)


@pytest.mark.slow
def test_smollm2_ids_equal_transformers(
    smollm2_files: TokenizerFiles, transformers_tokenizer: Any
) -> None:
    """On text without digits as transformers is; with digits once it cuts as the model's own does.

    SmolLM2's tokenizer.json has Sequence[Digits(individual_digits), ByteLevel]; transformers gives
    every byte-level GGUF without a rule of its own GPT-2's ByteLevel alone.
    """
    ours = tokenizer_of(smollm2_files)
    for text in DIGITLESS:
        assert ids(ours, text) == transformers_tokenizer(text, add_special_tokens=False).input_ids
    truth = transformers_tokenizer.backend_tokenizer
    truth.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    for text in CORPUS:
        assert ids(ours, text) == ids(truth, text)
        assert ours.decode(ids(ours, text), skip_special_tokens=False) == text


def test_smollm2_files(smollm2_files: TokenizerFiles) -> None:
    ours = tokenizer_of(smollm2_files)
    assert ours.get_vocab_size() == 49152
    assert ids(ours, "a  1") == [81, 256, 33]
    assert ids(ours, "<|im_start|>") == [1]
    assert ours.decode([1, 81, 2]) == "a"  # special tokens are left out
    assert smollm2_files.chat_template is not None
    assert "<|im_start|>system" in smollm2_files.chat_template
    expected = {"eos_token_ids": [2], "bos_token_id": 1, "add_bos": False, "defaults": {}}
    assert smollm2_files.generation == expected
    assert json.loads(smollm2_files.tokenizer_json)["post_processor"] is None


def test_special_and_user_defined_tokens_are_matched_whole() -> None:
    ours = tokenizer_of(built(**BYTE_LEVEL))
    assert ids(ours, "abc<eos>ab<think>") == [257, 258, 256, 259]
    assert ours.decode([257, 258, 259], skip_special_tokens=True) == "abc<think>"


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("qwen2", "I'LL pay 12\n\n x", ["I", "'LL", " pay", " ", "1", "2", "\n\n", " x"]),
        ("llama-bpe", "pay 12345!", ["pay", " ", "123", "45", "!"]),
        ("smollm", "pay  12 a1", ["pay", "  ", "1", "2", " a", "1"]),
        ("gpt-2", "pay  12 a1", ["pay", " ", " 12", " a", "1"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("default", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
    ],
)  # fmt: skip
def test_text_is_cut_by_the_named_rule(pre: str, text: str, pieces: list[str]) -> None:
    ours = tokenizer_of(built(**BYTE_LEVEL | {"pre": pre}))
    cut = ours.pre_tokenizer.pre_tokenize_str(text)
    assert [text.encode()[start:end].decode() for _, (start, end) in cut] == pieces


def test_qwen2_composes_and_llama3_takes_whole_words() -> None:
    qwen = tokenizer_of(built(**BYTE_LEVEL))
    assert ids(qwen, "e\u0301") == ids(qwen, "\u00e9")
    unmergeable = BYTE_LEVEL | {"tokens": [*BYTE_LEVEL["tokens"], "xyz"], "pre": "llama-bpe"}
    unmergeable["token_type"] = [*BYTE_LEVEL["token_type"], 1]
    assert ids(tokenizer_of(built(**unmergeable)), "xyz") == [260]
    assert len(ids(tokenizer_of(built(**unmergeable | {"pre": "gpt-2"})), "xyz")) == 3


def test_generation_facts() -> None:
    chat = BYTE_LEVEL | {"tokens": [*BYTE_LEVEL["tokens"], "<|eot_id|>", "<eom>", "<|im_end|>"]}
    chat["token_type"] = [*BYTE_LEVEL["token_type"], 3, 3, 1]
    facts = built(**chat, eom_token_id=261, bos_token_id=256).generation
    assert facts["eos_token_ids"] == [258, 261, 260]  # <|im_end|> is no control token here
    assert (facts["bos_token_id"], facts["add_bos"]) == (256, False)
    llama3 = built(**chat | {"pre": "llama-bpe"}, bos_token_id=256).generation
    assert llama3["add_bos"] is True
    assert built(**chat | {"pre": "llama-bpe"}).generation["add_bos"] is False  # no such token
    explicit = built(**chat | {"pre": "llama-bpe"}, bos_token_id=256, add_bos_token=False)
    assert explicit.generation["add_bos"] is False


# A sentencepiece vocabulary: bytes to fall back on, characters, merged pieces with scores.
PIECES = {
    "▁": -10.0, "a": -11.0, "b": -12.0, "c": -13.0, "▁a": -1.0, "ab": -2.0, "bc": -1.5,
    "▁ab": -3.0, "abc": -2.5, "▁▁": -4.0, "▁abc": -5.0, "aa": -3.5, "aaaa": -6.0,
}  # fmt: skip
SPM: dict[str, Any] = {
    "model": "llama",
    "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES],
    "token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES)],
    "scores": [0.0] * 259 + list(PIECES.values()),
    "unknown_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def sentencepiece_ids(text: str) -> list[int]:
    """The algorithm of sentencepiece: merge the best-scored pair, leftmost first, until none."""
    pieces = list("▁" + text.replace(" ", "▁")) if text else []
    while pairs := [
        (-PIECES[left + right], at)
        for at, (left, right) in enumerate(itertools.pairwise(pieces))
        if left + right in PIECES
    ]:
        _, at = min(pairs)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    known = {token: index for index, token in enumerate(SPM["tokens"])}
    found: list[int] = []
    for piece in pieces:
        found += [known[piece]] if piece in known else [3 + byte for byte in piece.encode()]
    return found


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet="abc \nz中", max_size=20))
def test_sentencepiece_ids_equal_the_naive_algorithm(text: str) -> None:
    ours = tokenizer_of(_SPM_FILES)
    assert ids(ours, text) == sentencepiece_ids(text)
    assert ours.decode(ids(ours, text)) == text


_SPM_FILES = built(**SPM)


def test_sentencepiece_starts_with_bos_and_may_lack_the_prefix_space() -> None:
    assert _SPM_FILES.generation["add_bos"] is True
    ours = tokenizer_of(built(**SPM, add_space_prefix=False))
    known = {token: index for index, token in enumerate(SPM["tokens"])}
    assert ids(ours, "abc a</s>") == [known["abc"], known["▁a"], 2]
    assert ours.decode([known["▁a"], known["bc"]]) == " abc"


def test_gemma_spells_runs_of_spaces_and_merges_by_id() -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["  ", "ab", "bc", "▁", "a", "b", "c"]
    metadata = {f"tokenizer.ggml.{key}": value for key, value in SPM.items()} | {
        "general.architecture": "gemma2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 4, *[1] * 6],
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.add_space_prefix": False,
    }
    ours = tokenizer_of(tokenizer_from_gguf(Path("m"), metadata, vocab_size=400))
    at = {token: index for index, token in enumerate(tokens)}
    assert ids(ours, "a  abc") == [at["a"], at["  "], at["ab"], at["c"]]
    assert ours.decode(ids(ours, "a  abc")) == "a  abc"


def test_no_tokenizer_means_token_ids_only(tiny_gguf: Path) -> None:
    assert tokenizer_from_gguf(Path("m"), {}, 10) is None
    assert tokenizer_from_gguf(Path("m"), {"tokenizer.ggml.model": "no_vocab"}, 10) is None
    assert open_model(tiny_gguf).tokenizer is not None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "rwkv"}, "expected gpt2 or llama, got 'rwkv'"),
        ({"pre": "novel"}, r"tokenizer.ggml.pre: expected one of .*got 'novel'"),
        ({"tokens": None}, r"tokenizer.ggml.tokens: expected a list of texts"),
        ({"tokens": ["a"] * 2}, "expected each once, got"),
        ({"token_type": [1]}, "token_type: expected one for each token"),
        ({"merges": ["a b", "b"]}, "expected pairs of tokens that make a token, got 'b'"),
        ({"merges": ["a c"]}, "expected pairs of tokens that make a token, got 'a c'"),
        ({"tokens": [str(n) for n in range(2000)]}, "expected at most 1000 tokens"),
        ({"model": "llama"}, "scores: expected a score for each token"),
    ],
)
def test_a_wrong_tokenizer_is_refused(changes: dict[str, Any], sentence: str) -> None:
    metadata = BYTE_LEVEL | changes
    if changes.get("model") == "llama":
        metadata.pop("merges")
    with pytest.raises(FrontendError, match=rf"m\.gguf: .*{sentence}"):
        built(**metadata)
