"""An interactive chat against a model that does what the test says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import pytest
from sglk.errors import RequestError
from sglk.runtime import Generation

Cli = Callable[..., tuple[int, str, str]]


class FakeStream:
    """Pieces of an answer; an exception among them is raised in its place."""

    def __init__(self, pieces: Sequence[str | type[BaseException]]) -> None:
        self.pieces = pieces
        self.generation = Generation()
        self.is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        self.is_closed = True

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            if not isinstance(piece, str):
                raise piece
            self.generation.text += piece
            yield piece


class FakeModel:
    """Answers with the scripts it was given, and keeps the conversations it saw."""

    chat_template = "there is one"

    def __init__(self, *scripts: Sequence[Any] | RequestError) -> None:
        self.scripts = list(scripts)
        self.seen: list[list[tuple[str, str]]] = []
        self.streams: list[FakeStream] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def chat(self, messages: Sequence[dict[str, str]], **options: object) -> FakeStream:
        self.seen.append([(m["role"], m["content"]) for m in messages])
        script = self.scripts.pop(0)
        if isinstance(script, RequestError):
            raise script
        self.streams.append(FakeStream(script))
        return self.streams[-1]


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, run_cli: Cli) -> Callable[..., Any]:
    """``chat(model, "line", ..., is_tty=True)``: a chat of these lines."""

    def run(model: FakeModel, *lines: str, is_tty: bool = True, options: Sequence[str] = ()) -> Any:
        waiting = list(lines)

        def read(prompt: str) -> str:
            print(prompt, end="")
            if not waiting:
                raise EOFError
            return waiting.pop(0)

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr("sglk.cli.run.load", lambda *args, **kwargs: model)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: is_tty, raising=False)
        return run_cli("run", "model.sglk", *options)

    return run


def test_answers_stay_in_the_conversation(chat: Callable[..., Any]) -> None:
    model = FakeModel(["He", "llo"], ["Bye"])
    status, out, _ = chat(model, "hi", "  ", "bye", options=["--system", "be brief"])
    assert status == 0
    assert out == "> Hello\n> > Bye\n> "
    assert model.seen[1] == [
        ("system", "be brief"), ("user", "hi"), ("assistant", "Hello"), ("user", "bye"),
    ]  # fmt: skip


def test_ctrl_c_stops_the_answer_and_not_the_chat(chat: Callable[..., Any]) -> None:
    model = FakeModel(["Once upon", KeyboardInterrupt, " a time"], ["Yes"])
    status, out, err = chat(model, "tell", "ready?")
    assert status == 0
    assert out == "> Once upon\n> Yes\n> " and "[stopped]" in err
    assert model.streams[0].is_closed
    assert ("assistant", "Once upon") in model.seen[1]


def test_ctrl_c_ends_a_single_answer(chat: Callable[..., Any]) -> None:
    model = FakeModel(["Once upon", KeyboardInterrupt])
    status, out, err = chat(model, options=["tell"])
    assert (status, out) == (130, "Once upon")
    assert err == "\nsglk run: interrupted\n"
    assert model.streams[0].is_closed


def test_a_refused_question_leaves_the_conversation_as_it_was(chat: Callable[..., Any]) -> None:
    model = FakeModel(RequestError("prompt: too long"), ["Fine"])
    status, _, err = chat(model, "a" * 9, "short")
    assert status == 0 and "sglk run: prompt: too long" in err
    assert model.seen[1] == [("user", "short")]


def test_a_refused_question_ends_a_piped_chat(chat: Callable[..., Any]) -> None:
    model = FakeModel(RequestError("prompt: too long"), ["Fine"])
    assert chat(model, "a" * 9, "short", is_tty=False)[0] == 1
