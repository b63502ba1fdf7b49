"""A LangChain agent works in a workspace, and you see the diff.

Needs the extra langchain, and LangChain: `pip install '.[langchain]' langchain`. Run
it anywhere: `python examples/langchain_agent.py`. A list of messages replaces the model; use
`ChatOpenAI(...)` or `ChatAnthropic(...)` instead, and nothing else changes.
"""

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from weakincentives.contrib.integrations import Toolbox
from weakincentives.contrib.integrations.langchain import langchain_tools
from weakincentives.filesystem import InMemoryFilesystem, diff

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("edit_file", {"file_path": "app.py", "old_string": "9090", "new_string": "8000"}),
    ("edit_file", {"file_path": "app.py", "old_string": "8080", "new_string": "8000"}),
    ("write_file", {"file_path": "CHANGES.md", "content": "- the port is 8000\n"}),
    ("read_file", {"file_path": "app.py"}),
]


class Scripted(FakeMessagesListChatModel):
    """LangChain's fake model, with the missing `bind_tools`."""

    def bind_tools(self, tools: Any, **_: Any) -> "Scripted":
        """Ignore the tools: the responses are scripted."""
        del tools
        return self


def script() -> list[Any]:
    """Return the responses of the model: one call at a time, then the answer."""
    calls = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{number}"}])
        for number, (name, args) in enumerate(CALLS, 1)
    ]
    return [*calls, AIMessage("The port is 8000 now.")]


def main() -> None:
    """Run the agent and print its changes."""
    files = InMemoryFilesystem()
    files.write("app.py", "PORT = 8080\n")
    before = files.snapshot()

    toolbox = Toolbox(filesystem=files)
    agent = create_agent(Scripted(responses=script()), langchain_tools(toolbox))
    done = agent.invoke(
        {"messages": [HumanMessage("Serve on port 8000.")]},
        {"max_concurrency": 1},  # run the calls of one message in order, not in parallel
    )

    for message in done["messages"]:
        if isinstance(message, ToolMessage):
            print(f"{message.name}: {message.status}: {message.text.splitlines()[0]}")
    print(f"\n{done['messages'][-1].text}\n")
    print(diff(files.view(before), files).patch())


if __name__ == "__main__":
    main()
