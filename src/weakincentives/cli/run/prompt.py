"""The prompt of a run: who the model is, how to work, how to verify, and how to end."""

from collections.abc import Iterator

from weakincentives.cli.run.sandbox import RunSandbox
from weakincentives.contrib.tools import FilesystemSection, WorkspaceDigestSection
from weakincentives.prompt import MarkdownSection, Prompt, Section

_WHO = """\
You are a software engineer. Your workspace is a copy of the user's project; when you are done, the
user sees the diff and decides whether to apply it. Nobody answers questions while you work: if
something is unclear, choose the simplest solution and say so at the end."""
_WORK = """\
Do what the task asks, and only that. Remove what your own change makes unnecessary, and temporary
files that you made; leave everything else as it is."""
_VERIFY = """\
After you change code, run the tests that cover it. If a test fails, find out whether it failed
before your change."""
_VERIFY_BY_READING = "You cannot run commands. Check your changes by reading them again."
_END = """\
When you are done, answer in a few sentences: what you changed, how you checked it, and what the
user should know."""


def create_prompt(
    workspace: FilesystemSection,
    sandbox: RunSandbox,
    *,
    has_digest: bool,
    instructions: Section[None] | None = None,
    environment: Section[None] | None = None,
) -> Prompt[None]:
    """Return the prompt of a run.

    Args:
        workspace: The section with the files and their tools.
        sandbox: Where the model's commands run.
        has_digest: Whether the session has a digest of the workspace.
        instructions: What the project and the user tell agents.
        environment: Facts about the surroundings of the run.
    """
    role = MarkdownSection[None](
        title="Your work", key="role", template="\n\n".join(_role_paragraphs(sandbox))
    )
    # what changes more often comes later: a provider's cache keeps what is before it
    digest = WorkspaceDigestSection(session=workspace.session, enabled=lambda: has_digest)
    sections = (role, workspace, instructions, digest, environment)
    return Prompt[None](
        ns="wink", key="run", name="wink run", sections=[each for each in sections if each]
    )


def _role_paragraphs(sandbox: RunSandbox) -> Iterator[str]:
    yield _WHO
    yield _WORK
    if sandbox.name is None:
        yield _VERIFY_BY_READING
    else:
        yield "\n".join(filter(None, (_VERIFY, sandbox.network)))
    yield _END
