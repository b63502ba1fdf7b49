"""Policies: an agent may read everything, but each change needs an allowed path and approval.

Needs no extra. Run it anywhere: `python examples/ask_before_writing.py`. A policy rejects a
call before it runs, and the model gets the reason as the result.
"""

from weakincentives.adapters import (
    AllowedPaths,
    Approval,
    ApprovalRequest,
    ReadBeforeWrite,
    RunOptions,
    ScriptedAdapter,
    ToolCall,
)
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.prompt import MarkdownSection, Prompt
from weakincentives.runtime.session import Session

SCRIPT = [
    ToolCall("write_file", {"file_path": "secrets.env", "content": "x", "mode": "overwrite"}),
    ToolCall("edit_file", {"file_path": "src/app.py", "old_string": "8080", "new_string": "80"}),
    ToolCall("read_file", {"file_path": "src/app.py"}),
    ToolCall("edit_file", {"file_path": "src/app.py", "old_string": "8080", "new_string": "80"}),
    ToolCall("edit_file", {"file_path": "src/app.py", "old_string": "8080", "new_string": "8000"}),
    "The port is 8000 now.",
]


def ask(request: ApprovalRequest) -> bool | str:
    """Approve or reject a change; here a rule replaces the person."""
    patch = request.diff.patch()
    print(patch)
    return "Ports below 1024 need root: choose a higher one" if "+PORT = 80\n" in patch else True


def main() -> None:
    """Run the agent under three policies."""
    session = Session()
    workspace = VfsToolsSection(session=session)
    workspace.filesystem.write("src/app.py", "PORT = 8080\n")
    workspace.filesystem.write("secrets.env", "KEY=1\n")
    prompt = Prompt(
        ns="examples/policies",
        key="port",
        sections=[MarkdownSection(title="Task", template="Change the port."), workspace],
    )
    policies = (AllowedPaths(["src/**"]), ReadBeforeWrite(), Approval(ask))
    answer = ScriptedAdapter(SCRIPT).evaluate(
        prompt, session=session, options=RunOptions(policies=policies)
    )
    for outcome in answer.tool_results:
        verdict = "done" if outcome.result.success else "rejected"
        print(f"{outcome.call.name}: {verdict}: {outcome.text.splitlines()[0]}")
    print(workspace.filesystem.read("src/app.py").content)


if __name__ == "__main__":
    main()
