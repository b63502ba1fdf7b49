"""A Pydantic AI agent works in a workspace, and you see the diff.

Needs the extra pydantic-ai: `pip install '.[pydantic-ai]'`. Run it anywhere: `python
examples/pydantic_ai_agent.py`. A function replaces the model; use `"openai:gpt-5"` or another
model instead, and nothing else changes.
"""

from typing import Any

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from weakincentives.contrib.integrations import Toolbox
from weakincentives.contrib.integrations.pydantic_ai import WorkspaceToolset
from weakincentives.filesystem import InMemoryFilesystem, diff
from weakincentives.runtime import ToolInvoked

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("edit_file", {"file_path": "app.py", "old_string": "9090", "new_string": "8000"}),
    ("edit_file", {"file_path": "app.py", "old_string": "8080", "new_string": "8000"}),
    ("write_file", {"file_path": "CHANGES.md", "content": "- the port is 8000\n"}),
    ("read_file", {"file_path": "app.py"}),
]


def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Return the responses of the model: one call at a time, then the answer."""
    count = sum(isinstance(each, ModelResponse) for each in messages)
    if count == len(CALLS):
        return ModelResponse([TextPart("The port is 8000 now.")])
    name, args = CALLS[count]
    return ModelResponse([ToolCallPart(name, args)])


def main() -> None:
    """Run the agent and print its changes."""
    files = InMemoryFilesystem()
    files.write("app.py", "PORT = 8080\n")
    before = files.snapshot()

    toolbox = Toolbox(filesystem=files)
    agent = Agent(FunctionModel(answer), toolsets=[WorkspaceToolset(toolbox)])
    done = agent.run_sync("Serve on port 8000.")

    for call in toolbox.session[ToolInvoked].all():
        verdict = "success" if call.success else "error"
        print(f"{call.tool}: {verdict}: {call.result_message.splitlines()[0]}")
    print(f"\n{done.output}\n")
    print(diff(files.view(before), files).patch())


if __name__ == "__main__":
    main()
