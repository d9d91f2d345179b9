"""Tool calls: the format is what the template writes, however the text arrives in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglk.runtime.chat import ChatTemplate
from sglk.runtime.server.call_format import CallFormat, find_call_format
from sglk.runtime.server.call_parser import CallParser

HEAD = (
    "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content or '' }}"
)
TAIL = "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
TEMPLATES = {
    "hermes": HEAD + "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}" + TAIL,
    "llama": HEAD
    + "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}"
    '{% endif %}{% set c = m.tool_calls[0].function %}{"name": "{{ c.name }}", "parameters": '
    "{{ c.arguments | tojson }}}{% endif %}" + TAIL,
    "mistral": HEAD + "{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, '
    '"id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}' + TAIL,
    "deepseek": HEAD + "{% if m.tool_calls %}<calls_begin>{% for c in m.tool_calls %}"
    "<call_begin>function<sep>{{ c.function.name }}\n```json\n"
    "{{ c.function.arguments + '' }}\n```<call_end>{% endfor %}<calls_end>{% endif %}" + TAIL,
}
WRITTEN = {
    "hermes": 'Sure.\n<tool_call>\n{"name": "add", "arguments": {"x": 1, "s": "}<"}}\n</tool_call>'
    '\n<tool_call>\n{"name": "neg", "arguments": {}}\n</tool_call>',
    "llama": '{"name": "add", "parameters": {"x": 1, "s": "}<"}}',
    "mistral": '[TOOL_CALLS] [{"name": "add", "arguments": {"x": 1, "s": "}<"}, "id": "a"}, '
    '{"name": "neg", "arguments": {}, "id": "b"}]',
    "deepseek": 'Sure.<calls_begin><call_begin>function<sep>add\n```json\n{"x": 1, "s": "}<"}\n```'
    "<call_end><call_begin>function<sep>neg\n```json\n{}\n```<call_end><calls_end>",
}
NAMES = ("add", "neg")


def form_of(name: str) -> CallFormat:
    found = find_call_format(ChatTemplate(TEMPLATES[name]))
    assert found is not None
    return found


def parsed(form: CallFormat, pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    parser = CallParser(form, NAMES)
    content, calls = "", []
    for piece in pieces:
        text, found = parser.push(piece)
        content += text
        calls += found
    text, found = parser.finish()
    calls += found
    return content + text, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_format_is_read_from_the_template(name: str) -> None:
    form = form_of(name)
    assert (form.joint is None) == (name == "llama")
    assert form.arguments_as_text == (name == "deepseek")
    assert (
        form.trigger
        == {
            "hermes": "<tool_call>",
            "llama": "",
            "mistral": "[TOOL_CALLS]",
            "deepseek": "<calls_begin>",
        }[name]
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_pieces_of_any_size_give_the_same_calls(name: str) -> None:
    form, text = form_of(name), WRITTEN[name]
    whole = parsed(form, [text])
    assert whole[1][0] == ("add", {"x": 1, "s": "}<"})
    assert len(whole[1]) == (1 if name == "llama" else 2)
    assert whole[0].strip() == ("Sure." if "Sure" in text else "")
    for size in (1, 2, 3, 7, 20):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert parsed(form, pieces) == whole, size


@given(st.data())
def test_text_without_calls_comes_through_unchanged(data: Any) -> None:
    form = form_of(data.draw(st.sampled_from(sorted(TEMPLATES))))
    parts = [form.trigger or "{", form.end, "{", "}", '"name"', "[", "plain ", "\n", "añ世"]
    pieces = data.draw(st.lists(st.sampled_from([p for p in parts if p]), max_size=12))
    content, calls = parsed(form, pieces)
    assert not calls and content == "".join(pieces)


def test_a_function_that_was_not_offered_stays_text() -> None:
    form = form_of("hermes")
    text = '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>'
    content, calls = parsed(form, [text])
    assert not calls and '"rm"' in content


@pytest.mark.parametrize(
    "template", ["{% for m in messages %}{{ m.content }}{% endfor %}", HEAD + TAIL]
)
def test_a_template_that_writes_no_calls_has_no_format(template: str) -> None:
    assert find_call_format(ChatTemplate(template)) is None


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
    }
    for name in NAMES
]


@pytest.fixture(scope="module")
def tool_server(build_server: Any, hermes: str) -> Any:
    server = build_server(template=hermes)
    yield server
    server.stop()


def test_a_forced_call_is_that_call_with_arguments_of_its_schema(tool_server: Any) -> None:
    messages: Any = [{"role": "user", "content": "go"}]
    choice: Any = {"type": "function", "function": {"name": "neg"}}
    ask: Any = {"model": "test", "messages": messages, "tools": TOOLS, "max_tokens": 300}
    create = tool_server.openai.chat.completions.create
    answer = create(**ask, tool_choice=choice, temperature=0).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    (call,) = answer.message.tool_calls
    assert call.type == "function" and call.function.name == "neg"
    assert 0 <= json.loads(call.function.arguments)["x"] <= 9
    pieces = list(create(**ask, tool_choice=choice, temperature=0, stream=True))
    deltas = [d for p in pieces for c in p.choices for d in c.delta.tool_calls or []]
    assert [d.index for d in deltas] == [0]
    assert deltas[0].function.name == "neg"
    assert "".join(d.function.arguments for d in deltas) == call.function.arguments
    assert [c.finish_reason for p in pieces for c in p.choices][-1] == "tool_calls"


def test_required_calls_something_and_none_calls_nothing(tool_server: Any) -> None:
    reply = tool_server.chat(
        "go", tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=300
    )
    calls = reply.json()["choices"][0]["message"]["tool_calls"]
    assert len(calls) == 1 and calls[0]["function"]["name"] in NAMES
    with_none = tool_server.chat("go", tools=TOOLS, tool_choice="none").json()
    assert with_none["choices"] == tool_server.chat("go").json()["choices"]


def test_results_go_back_into_the_conversation(tool_server: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    messages: Any = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    assert tool_server.chat(messages=messages, tools=TOOLS).status_code == 200
    call["function"] = {"name": "add", "arguments": "no json"}
    reply = tool_server.chat(messages=messages, tools=TOOLS)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages")


def test_a_choice_of_an_unknown_tool_is_refused(tool_server: Any) -> None:
    choice = {"type": "function", "function": {"name": "rm"}}
    reply = tool_server.chat(tools=TOOLS, tool_choice=choice)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")
