"""Chat templates: what transformers renders, in a sandbox, with errors that name the template."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from sglk.errors import ArtifactError, RequestError
from sglk.runtime.chat import ChatTemplate, SpecialTokens

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = """{{- bos_token }}
{%- if tools is not none %}
    {%- for tool in tools %}
{{ tool | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{%- set state = namespace(turns=0) %}
{% for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- set state.turns = state.turns + 1 %}
    {%- if message.content is none or message.content is not defined %}
[call {{ message.tool_calls | tojson }}]
    {%- else %}
[{{ message.role }}] {{ message.content | trim }}{{ eos_token }}
    {%- endif %}
{%- endfor %}
{% generation %}{{ state.turns }} turns{% endgeneration %}
"""
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": " <Grüße> & 你好 "},
    {"role": "skip", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"a": "é"}}]},
    {"role": "user", "content": "again", "extra": 1},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": [1, None, True]}}}]
TOKENS = SpecialTokens(bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("source", [CHATML, LLAMA])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("prompt", [False, True])
def test_templates_render_as_in_transformers(
    source: str, tools: list[dict[str, Any]] | None, prompt: bool
) -> None:
    theirs = pytest.importorskip("transformers.utils.chat_template_utils")
    talk = TALK if source is LLAMA else [TALK[0], TALK[3]]
    expected, _ = theirs.render_jinja_template(
        [talk],
        tools=tools,
        chat_template=source,
        add_generation_prompt=prompt,
        bos_token="<s>",
        eos_token="</s>",
    )
    got = ChatTemplate(source, TOKENS).render(talk, tools=tools, add_generation_prompt=prompt)
    assert got == expected[0]


def test_a_generation_block_is_its_body() -> None:
    source = "{% generation %}{{ messages[0].content }}{% endgeneration %}!"
    assert ChatTemplate(source).render([{"role": "user", "content": "hi"}]) == "hi!"


def test_reasoning_is_found_under_any_of_its_names() -> None:
    source = "{{ messages[0].reasoning_content }}/{{ messages[0].thinking }}"
    talk = [{"role": "assistant", "content": "x", "reasoning": "because"}]
    assert ChatTemplate(source).render(talk) == "because/because"


def test_tojson_does_not_escape_html() -> None:
    source = "{{ messages[0].content | tojson }}"
    text = "<b>'é'</b>"
    assert json.loads(ChatTemplate(source).render([{"role": "u", "content": text}])) == text
    assert "<b>" in ChatTemplate(source).render([{"role": "u", "content": text}])


def test_the_date_and_own_variables_are_there() -> None:
    source = "{{ strftime_now('%Y') }} {{ enable_thinking }}"
    got = ChatTemplate(source).render([{"role": "user", "content": ""}], enable_thinking=False)
    year, flag = got.split()
    assert int(year) <= datetime.datetime.now().year and flag == "False"


def test_a_template_refuses_by_its_own_words() -> None:
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(RequestError, match=r"chat template: .*roles must alternate"):
        ChatTemplate(source).render([{"role": "user", "content": ""}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_foreign_code_stays_in_its_box(source: str) -> None:
    with pytest.raises(RequestError, match="chat template: the model's template refused"):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


def test_objects_with_methods_never_reach_a_template() -> None:
    class Rich:
        def delete_everything(self) -> None:
            raise AssertionError("called from a template")

    source = "{{ messages[0].content }}"
    assert ChatTemplate(source).render([{"role": "user", "content": Rich()}]) == "<Rich>"


def test_a_broken_template_is_the_artifacts_fault() -> None:
    with pytest.raises(ArtifactError, match="chat template: expected valid Jinja"):
        ChatTemplate("{% for %}")
    unseen = ChatTemplate("{% for %}", checked=False)
    with pytest.raises(ArtifactError, match="chat template: expected valid Jinja"):
        unseen.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message, got list of length 0"),
        ("hi", "a list of at least one message, got str"),
        (["hi"], r"messages\[0\]: expected a mapping with role and content, got 'hi'"),
        ([{"content": "x"}], r"messages\[0\]: expected a role, got None"),
    ],
)
def test_what_is_no_conversation_is_refused(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ChatTemplate(CHATML).render(messages)
