"""Twenty prompts for `fidelity.py`: 1 to 2,000 tokens; prose, chat, code, numbers, emoji, Chinese.

Everything is spelled out here or made from it by rule: every machine compares the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Encode = Callable[[str], list[int]]
Render = Callable[[Sequence[dict[str, str]]], list[int]]


@dataclass(frozen=True)
class Prompt:
    """Token ids with a name for tables."""

    name: str
    ids: tuple[int, ...]


TEXTS: tuple[tuple[str, str], ...] = (
    ("one word", "The"),
    ("two words", "Once upon"),
    ("question", "What is the capital of France?"),
    ("story", "Once upon a time, in a village by the sea, there lived an old clockmaker who"),
    ("chinese 1", "中国的首都是北京。北京有很多名胜古迹，例如"),
    (
        "chinese 2",
        "春天来了，花园里的花都开了。小明和他的妹妹一起去公园玩。他们看到了很多美丽的蝴蝶，"
        "还有一只小鸟在树上唱歌。小明问妹妹：“你喜欢春天吗？”妹妹说：",
    ),
    (
        "python",
        "def fibonacci(n: int) -> int:\n"
        '    """Return the n-th Fibonacci number."""\n'
        "    if n < 2:\n        return n\n    a, b = 0, 1\n    for _ in range(",
    ),
    (
        "c",
        "#include <stdio.h>\n\nint main(int argc, char **argv) {\n"
        "\tfor (int i = 0; i < argc; ++i) {"
        '\n\t\tprintf("%d: %s\\n", i, argv[i]);\n',
    ),
    (
        "json",
        '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "works": [{"title":',
    ),
    ("numbers", "2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47,"),
    ("sums", "12 + 30 = 42\n7 * 8 = 56\n100 - 1 = 99\n81 / 9 = 9\n15 + 27 ="),
    ("emoji", "I love 🍕 and 🎉! My weekend: 🏖️☀️🌊. What do these emoji mean? 👩‍🔬🚀 →"),
    ("spaces", "a  b   c    d\n\n\n\te\t\tf \u00a0 g  1  22   333    4444"),
    (
        "european",
        "Voilà, où êtes-vous? Größe, Straße, señor, naïve façade. Ελληνικά, русский язык, ",
    ),
    ("poem", "Roses are red,\nViolets are blue,\nSugar is sweet,\n"),
)
CHAT: tuple[dict[str, str], ...] = (
    {"role": "user", "content": "Hi! Can you help me plan a birthday party?"},
    {
        "role": "assistant",
        "content": "Of course! How many guests do you expect, and indoors or outdoors?",
    },
    {"role": "user", "content": "About 12 children, outdoors, in June."},
    {
        "role": "assistant",
        "content": "Great. I suggest a treasure hunt, a picnic and simple team games.",
    },
    {"role": "user", "content": "What should we eat? One child is allergic to nuts."},
    {
        "role": "assistant",
        "content": "Sandwiches, fruit skewers and a vanilla cake, all without nuts.",
    },
    {"role": "user", "content": "Now write the invitation in two sentences."},
)
"""Six turns and the question that is to be answered."""
PROSE = """\
The harbour was quiet in the early morning. Fishing boats lay side by side, their nets drying in
the wind, and the only sound was the slow knocking of wood against stone. Mara walked along the
quay with a letter in her hand. She had read it four times and still did not believe it. Her
brother, who had left eleven years ago on a ship bound for the southern islands, was coming home.
He did not say why, and he did not say for how long.

In the kitchen her mother was kneading bread. "Set another place," Mara said. The old woman looked
up, flour on her cheek, and for a moment neither of them spoke. Outside a gull cried. Then the
kettle began to sing and the day went on as every other day, except that there was a fifth chair
at the table, and that nobody could stop looking at it.

A river begins as rain. Drops fall on a mountain, run together in cracks of the rock, and become a
stream that is narrow enough to step across. Further down the stream meets others; the water
slows, carries sand and clay, and spreads over the plain. People have always settled there,
because the soil is deep and a boat can carry more than a cart. Yet the same water that feeds the
fields destroys them in some years, and every town by a river has a mark on a wall that shows how
high the flood once came.
"""
REPORT_LINE = (
    "Entry {n}: on day {day} the station at {place} measured {value} degrees and "
    "{rain} mm of rain; the wind came from the {wind}. "
)
PLACES = ("Ardlen", "Bexhill", "Corvo", "Dunmore", "Eskdale", "Farrow", "Glenrock")
WINDS = ("north", "south-east", "west", "east", "south", "north-west")
LENGTHS = (("prose 250", 250), ("report 600", 600), ("report 1200", 1200), ("mixed 2000", 2000))


def make_prompts(encode: Encode, render: Render | None) -> list[Prompt]:
    """All prompts, shortest kinds first; no chat for a model without a template (``render``)."""
    prompts = [Prompt(name, tuple(encode(text))) for name, text in TEXTS]
    if render is not None:
        prompts.append(Prompt("chat of 6 turns", tuple(render(CHAT))))
    prose, report = encode(PROSE), encode(_report(120))
    sources = (prose, report, report, [*prose, *report])
    long = zip(LENGTHS, sources, strict=True)
    return [*prompts, *(Prompt(name, _cut(ids, n)) for (name, n), ids in long)]


def _cut(ids: Sequence[int], length: int) -> tuple[int, ...]:
    if len(ids) < length:
        raise ValueError(f"expected a text of at least {length} tokens, got {len(ids)}")
    return tuple(ids[:length])


def _report(lines: int) -> str:
    return "".join(
        REPORT_LINE.format(
            n=n,
            day=1 + n * 11 % 365,
            place=PLACES[n * n % 7],
            value=n * 37 % 41 - 8,
            rain=n * n % 29,
            wind=WINDS[n * 5 % 6],
        )
        for n in range(lines)
    )
