"""Structured output: the schema goes out, the dataclass comes back."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.workers import Answer, prompt
from weakincentives.adapters import (
    Completion,
    OutputError,
    RunOptions,
    ScriptedAdapter,
    ToolCall,
    UserMessage,
    partial_response,
)
from weakincentives.adapters.loop.output import ExpectedOutput, expected_output
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime.session import Session
from weakincentives.serde import SerdeError, encode, json_schema

JSON = '{"name": "cats", "count": 3}'


@dataclass(frozen=True)
class Node:
    label: str
    inner: "tuple[Node, ...]" = ()


def expected(kind: Any) -> ExpectedOutput:
    found = expected_output(prompt(output_type=kind).render())
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        JSON,
        f"\n  {JSON}\n",
        f"```json\n{JSON}\n```",
        f"```\n{JSON}\n```",
        f"Here you are:\n\n```json\n{JSON}\n```\n\nAnything else?",
        f"~~~~ json\n{JSON}\n~~~~",
        f"  ```JSON\n  {JSON}\n  ```",
        f"The answer is {JSON} as you asked.",
        f"First ```{{}}``` then\n```json\n{{}}\n```\nno, rather\n```json\n{JSON}\n```",
        '```json\n{"name": "cats",\n "count": 3}\n```',
    ],
)
def test_an_answer_is_found_in_fences_and_prose(text: str):
    response = ScriptedAdapter([text]).evaluate(
        prompt(output_type=Answer), session=Session(), options=RunOptions(output_retries=0)
    )
    assert response.output == Answer("cats", 3)
    assert response.text == text


def test_fences_inside_a_string_are_part_of_it():
    text = '```json\n{"name": "```python```", "count": 1}\n```'
    assert expected(Answer).parse(text) == Answer("```python```", 1)


def test_a_list_is_wrapped_for_providers_and_accepted_with_and_without():
    wanted = expected(list[Answer])
    assert wanted.format.schema["type"] == "object"
    assert wanted.format.schema["required"] == ["items"]
    assert wanted.parse(f"[{JSON}]") == [Answer("cats", 3)]
    assert wanted.parse(f'{{"items": [{JSON}, {JSON}]}}') == [Answer("cats", 3)] * 2
    assert wanted.parse("[]") == []


def test_a_type_that_contains_itself_keeps_its_definitions_at_the_top():
    schema = expected(list[Node]).format.schema
    assert "$defs" in schema
    assert b'"$defs"' not in encode(schema["properties"])


def test_the_schema_is_sent_and_told_in_words():
    adapter = ScriptedAdapter([JSON])
    adapter.evaluate(prompt(output_type=Answer), session=Session())
    (request,) = adapter.requests
    assert request.output is not None
    assert (request.output.name, request.output.schema) == ("Answer", json_schema(Answer))
    assert encode(request.output.schema).decode() in request.messages[0].text


def test_where_the_provider_sees_to_it_nothing_is_said():
    adapter = ScriptedAdapter([JSON], native_output=True)
    task = prompt(output_type=Answer)
    assert adapter.evaluate(task, session=Session()).output == Answer("cats", 3)
    assert adapter.requests[0].messages == (UserMessage(task.render().text),)
    assert adapter.requests[0].output is not None


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("Three cats.", "The answer contains no JSON"),
        ('{"name": "cats"}', "Missing field 'count'"),
        ('{"name": "cats", "count": "3"}', "Field 'count': expected int"),
        ('{"name": "cats", "count": 3, "colour": 1}', "Unknown field 'colour'"),
        ("[1, 2]", "Expected object, got array"),
        ('{"name": "ca', "The answer contains no JSON"),
        ("", "The answer contains no JSON"),
    ],
)
def test_a_wrong_answer_is_sent_back_once_with_what_is_wrong(wrong: str, problem: str):
    adapter = ScriptedAdapter([wrong, JSON])
    response = adapter.evaluate(prompt(output_type=Answer), session=Session())
    assert response.output == Answer("cats", 3)
    said, told = adapter.requests[1].messages[1:]
    assert said.text == wrong
    assert isinstance(told, UserMessage)
    assert problem in told.text


def test_an_answer_that_stays_wrong_is_an_error_that_says_how():
    adapter = ScriptedAdapter(["Three.", '{"name": "cats"}', JSON])
    with pytest.raises(OutputError, match=r"not match Answer, .* Missing field 'count'") as caught:
        adapter.evaluate(prompt(output_type=Answer), session=Session())
    assert adapter.remaining == 1
    partial = partial_response(caught.value)
    assert partial is not None
    assert (partial.text, partial.output) == ('{"name": "cats"}', None)


def test_an_answer_that_was_cut_off_is_sent_back_as_too_long():
    adapter = ScriptedAdapter([Completion('{"name": "ca', stop_reason="length"), JSON])
    adapter.evaluate(prompt(output_type=Answer), session=Session())
    assert "It was too long and was cut off" in adapter.requests[1].messages[-1].text


def test_a_template_of_a_type_asks_for_it():
    template = PromptTemplate[Answer](
        ns="tests", key="typed", sections=[MarkdownSection(title="Task", template="Count.")]
    )
    response = ScriptedAdapter([JSON]).evaluate(Prompt(template), session=Session())
    assert response.output == Answer("cats", 3)


def test_a_model_may_look_again_before_it_mends_its_answer():
    fs = InMemoryFilesystem()
    fs.write("a", "cats 3")
    adapter = ScriptedAdapter(["?", ToolCall("read_file", {"path": "a"}), JSON])
    response = adapter.evaluate(prompt(fs, output_type=Answer), session=Session())
    assert response.output == Answer("cats", 3)


@given(st.text(alphabet='{}[]`~\n "a:,1', max_size=200))
@settings(max_examples=200)
def test_any_text_is_an_answer_or_refused(text: str):
    try:
        found = expected(Answer).parse(text)
    except SerdeError as error:
        assert error.problems
    else:
        assert isinstance(found, Answer)


@given(st.text(max_size=50), st.integers(-(2**53), 2**53), st.text(alphabet="abc .\n", max_size=30))
@settings(max_examples=100)
def test_what_was_encoded_is_found_in_a_fence(name: str, count: int, prose: str):
    answer = Answer(name, count)
    text = f"{prose}\n```json\n{encode(answer).decode()}\n```\n{prose}"
    assert expected(Answer).parse(text) == answer


def test_a_text_full_of_fences_is_read_in_time_that_grows_with_it():
    with pytest.raises(SerdeError, match="no JSON"):
        expected(Answer).parse("```a\n" * 100_000)
