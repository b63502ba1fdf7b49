"""An agent edits copies of your documents in memory, and you see the diff.

Needs no extra. Run it anywhere: `python examples/vfs_tools_example.py`. A script replaces the
model; use `OpenAIAdapter(...)` or `AnthropicAdapter(...)` instead, and nothing else changes.
"""

import tempfile
from pathlib import Path

from weakincentives.adapters import ScriptedAdapter, ToolCall
from weakincentives.filesystem import diff
from weakincentives.prompt import MarkdownSection, Prompt
from weakincentives.runtime import InProcessEventBus, ToolInvoked
from weakincentives.runtime.session import Session, select_latest
from weakincentives.tools import vfs

SCRIPT = [
    ToolCall("glob", {"pattern": "**/*.md"}),
    ToolCall("read_file", {"file_path": "docs/guide.md"}),
    ToolCall(
        "edit_file",
        {"file_path": "docs/guide.md", "old_string": "recieve", "new_string": "receive"},
    ),
    ToolCall("write_file", {"file_path": "docs/changes.md", "content": "- fixed a typo\n"}),
    "I fixed one typo and listed it in docs/changes.md.",
]


def main() -> None:
    """Run the agent and print its changes."""
    with tempfile.TemporaryDirectory() as directory:
        project = Path(directory)
        (project / "docs").mkdir()
        (project / "docs" / "guide.md").write_text("# Guide\n\nYou will recieve a key.\n")

        bus = InProcessEventBus()
        session = Session(bus=bus)
        bus.subscribe(ToolInvoked, lambda event: print(f"{event.tool}: {', '.join(event.paths)}"))

        workspace = vfs.VfsToolsSection(
            session=session,
            mounts=(
                vfs.HostMount(
                    host_path=str(project / "docs"),
                    mount_path=vfs.VfsPath(("docs",)),
                    include_glob=("*.md",),
                ),
            ),
            allowed_host_roots=(project,),
        )
        prompt = Prompt(
            ns="examples/documents",
            key="proofread",
            sections=[
                MarkdownSection(title="Task", template="Fix the typos in the documents."),
                workspace,
            ],
        )
        files = workspace.filesystem
        before = files.snapshot()

        answer = ScriptedAdapter(SCRIPT).evaluate(prompt, session=session)
        print(f"\n{answer.text}\n")

        print(diff(files.view(before), files).patch())

        known = select_latest(session, vfs.VirtualFileSystem)
        for file in known.files if known else ():
            print(f"{file.path}: version {file.version}, {file.size_bytes} bytes")

        files.restore(before)
        print(f"\nRestored: {files.read('docs/guide.md').content.splitlines()[-1]}")
        print(f"On the host nothing changed: {(project / 'docs' / 'guide.md').read_text()!r}")


if __name__ == "__main__":
    main()
