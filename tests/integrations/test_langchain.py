import asyncio
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from tests.integrations.pictures import PICTURE, filesystem_with_a_picture
from weakincentives.contrib.integrations import Toolbox
from weakincentives.contrib.integrations.langchain import langchain_tools
from weakincentives.contrib.tools.dialects import DIALECTS
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import ToolInvoked

TOLD_ELSEWHERE = {"title", "description"}


def tool(box: Toolbox, name: str, *, pictures: bool = False) -> Any:
    return next(each for each in langchain_tools(box, pictures=pictures) if each.name == name)


def a_call(name: str, **args: object) -> dict[str, object]:
    return {"name": name, "args": args, "id": "call-1", "type": "tool_call"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_is_given_our_schemas_as_they_are(dialect: Any):
    ours = filesystem_tools(dialect)
    theirs = langchain_tools(Toolbox(ours))
    assert [each.args_schema for each in theirs] == [each.schema for each in ours]
    sent = [convert_to_openai_tool(each)["function"] for each in theirs]
    # the description of the tool stands in for that of its parameters
    assert sent == [
        {
            "name": each.name,
            "description": each.description,
            "parameters": {k: v for k, v in each.schema.items() if k not in TOLD_ELSEWHERE},
        }
        for each in ours
    ]


def test_a_call_without_a_model_returns_the_text():
    fs = InMemoryFilesystem()
    fs.write("a", "hello\n")
    read = tool(Toolbox(filesystem=fs), "read_file")
    assert read.invoke({"file_path": "a"}).endswith("hello")
    assert read.invoke('{"file_path": "a"}').endswith("hello")
    assert asyncio.run(read.ainvoke({"file_path": "a"})).endswith("hello")


def test_a_call_of_a_model_is_answered_with_its_id():
    box = Toolbox(filesystem=InMemoryFilesystem())
    done = tool(box, "ls").invoke(a_call("ls"))
    assert isinstance(done, ToolMessage)
    assert (done.tool_call_id, done.status) == ("call-1", "success")
    assert [each.call_id for each in box.session[ToolInvoked].all()] == ["call-1"]


def test_a_failed_call_has_the_status_of_one():
    gone = a_call("read_file", file_path="gone")
    read = tool(Toolbox(filesystem=InMemoryFilesystem()), "read_file")
    for done in (read.invoke(gone), asyncio.run(read.ainvoke(gone))):
        assert done.status == "error"
        assert "gone" in done.text


def test_a_picture_is_shown_only_where_it_is_wanted():
    box = Toolbox(filesystem=filesystem_with_a_picture())
    asked = a_call("read_file", file_path="dot.png")
    blind = tool(box, "read_file").invoke(asked)
    seeing = tool(box, "read_file", pictures=True).invoke(asked)
    assert isinstance(blind.content, str)
    text, picture = seeing.content
    assert text == {"type": "text", "text": blind.content}
    assert picture == {"type": "image", "base64": PICTURE, "mime_type": "image/png"}
