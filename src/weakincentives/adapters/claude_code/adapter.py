"""Claude by the Claude Agent SDK: Claude Code works on a prompt, with its tools and with ours.

Needs the extra `claude-agent-sdk`, which brings Claude Code itself. Of the environment only
`ANTHROPIC_API_KEY` is used, and only where no key is given; settings, memories and servers of
the user and of the project are left out. Proxies and certificates are those of the machine.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TypeVar
from uuid import uuid4

try:
    from claude_agent_sdk import ClaudeAgentOptions
    from claude_agent_sdk.types import SystemPromptFile
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "Models of claude-agent need an extra: pip install 'weakincentives[claude-agent-sdk]'",
        name=_error.name,
    ) from _error

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.claude_code.native_tools import READING, WRITING
from weakincentives.adapters.claude_code.process import PREFIX
from weakincentives.adapters.claude_code.run import SESSION, AgentRun, Task
from weakincentives.adapters.errors import InvalidRequestError
from weakincentives.adapters.http.client import check_key, checked_url, shown_url, url_secrets
from weakincentives.adapters.http.errors import Endpoint
from weakincentives.adapters.loop.limits import RunLimits
from weakincentives.adapters.loop.output import expected_output
from weakincentives.adapters.messages import (
    AssistantMessage,
    Completion,
    CompletionRequest,
    Message,
    PromptResponse,
    UserMessage,
)
from weakincentives.adapters.options import RunOptions
from weakincentives.filesystem import Filesystem, HostBacked
from weakincentives.prompt import Prompt, RenderedPrompt
from weakincentives.runtime.session import Session

OutputT = TypeVar("OutputT")
FILE_TOOLS = ("Read", "Write", "Edit", "Glob", "Grep")
"""Claude Code's own tools for files, which it can be trusted with: they stay in the workspace."""
_URL = "https://api.anthropic.com"
_EXAMPLE = "http://localhost:8080"
_KEY_NAME = "ANTHROPIC_API_KEY"
_KEY = f"{_KEY_NAME} or api_key"
_MOST_BYTES = 64 * 1024 * 1024
_MILLISECONDS = 86_400_000  # a day, for what we bound ourselves
# what Claude Code takes from the environment to change its requests and what it does
_HEEDED = ("ANTHROPIC_", "CLAUDE", "DISABLE_", "ENABLE_", "MAX_", "MCP_", "API_", "BASH_")
_SETTINGS = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    # what goes on after its call is over could be neither captured nor undone
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_MCP_TASK_BACKGROUND": "1",
    "MCP_TOOL_TIMEOUT": str(_MILLISECONDS),
    # all tools are told to the model at once
    "ENABLE_TOOL_SEARCH": "false",
}


class ClaudeAgentAdapter(ProviderAdapter):
    """Has Claude Code work on a prompt; its loop takes the place of ours."""

    name = "claude-agent"
    native_output = True

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        native_tools: Sequence[str] = FILE_TOOLS,
        undo_on_failure: bool = False,
    ) -> None:
        """Ask `model`.

        Args:
            model: Its name, as Claude Code knows it.
            api_key: None is what the environment has as `ANTHROPIC_API_KEY`.
            base_url: Where the API is, as `http://localhost:8080`; None is Anthropic.
            native_tools: Claude Code's own tools that the model may use where the prompt's
                workspace is a directory of the host. What is named here runs without asking:
                `Bash` runs commands on the host, without isolation.
            undo_on_failure: Whether a run that fails or is cancelled leaves the files and the
                session as they were before it.

        Raises:
            AuthenticationError: The key cannot be one.
            InvalidRequestError: `base_url` is no URL.
        """
        self.model = model
        self._native_tools = tuple(native_tools)
        self._undo_on_failure = undo_on_failure
        url = checked_url(base_url or _URL, provider=self.name, example=_EXAMPLE)
        self._url = None if base_url is None else base_url.rstrip("/").removesuffix("/v1")
        if api_key is not None:
            check_key(api_key, provider=self.name, where=_KEY)
        self._api_key = api_key
        secret = api_key or os.environ.get(_KEY_NAME, "")  # to leave it out of sentences
        self._endpoint = Endpoint(
            self.name, model, shown_url(url), _KEY, secret, tuple(url_secrets(url))
        )
        self._lock = Lock()
        self._home: Path | None = None
        self._remove_home: Callable[[], object] | None = None

    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Refuse: Claude Code asks the model itself, again and again.

        Raises:
            InvalidRequestError: Always.
        """
        raise InvalidRequestError(
            f"{self.name} cannot be asked for one step, it has a loop of its own: use evaluate,"
            " or a model of anthropic",
            provider=self.name,
        )

    def close(self) -> None:
        """Forget the sessions of Claude Code: conversations cannot be gone on with any more."""
        with self._lock:
            remove, self._remove_home, self._home = self._remove_home, None, None
        if remove is not None:
            remove()

    def _work(
        self,
        prompt: Prompt[OutputT],
        rendered: RenderedPrompt[OutputT],
        *,
        session: Session,
        bounds: RunLimits,
        options: RunOptions,
        messages: Sequence[Message],
        on_text: Callable[[str], None] | None,
    ) -> PromptResponse[OutputT]:
        if options.temperature is not None:
            raise InvalidRequestError(
                f"{self.name} does not take a temperature, leave it out: {options.temperature!r}",
                provider=self.name,
            )
        task = self._task(prompt, rendered, bounds, options, tuple(messages))
        return AgentRun(
            task,
            self._endpoint,
            adapter=self,
            session=session,
            bounds=bounds,
            options=options,
            on_text=on_text,
        ).run()

    def _task(
        self,
        prompt: Prompt[OutputT],
        rendered: RenderedPrompt[OutputT],
        bounds: RunLimits,
        options: RunOptions,
        messages: tuple[Message, ...],
    ) -> Task[OutputT]:
        home = self._made_home()
        files = prompt.filesystem()
        workspace = files if isinstance(files, HostBacked) and self._native_tools else None
        tools = () if workspace is None else self._tools(workspace)
        expected = expected_output(rendered)
        opening = UserMessage(rendered.text)
        earlier, said = _parted(messages or (opening,))
        resumed = _session_of(earlier, home)
        starts = ClaudeAgentOptions(
            model=self.model,
            cwd=home / "nowhere" if workspace is None else os.path.realpath(workspace.root),
            tools=list(tools),
            allowed_tools=[
                *([f"{PREFIX}*"] if rendered.tools else []),
                *(each for each in tools if each not in (*READING, *WRITING)),
            ],
            permission_mode="acceptEdits",
            # in the words of the command line: stay in the workspace, and ask nobody
            extra_args={"restricted": None, "permission-prompts": "none"},
            setting_sources=[],
            skills=[],
            strict_mcp_config=True,
            verbatim_prompts=True,
            include_partial_messages=True,
            max_turns=options.max_steps,
            max_buffer_size=_MOST_BYTES,
            env=self._environment(home, bounds, options),
            resume=resumed,
            fork_session=resumed is not None,
        )
        if expected is not None:
            starts.output_format = {"type": "json_schema", "schema": dict(expected.format.schema)}
        if messages and messages[0] != opening:
            starts.system_prompt = _system_prompt(home, rendered.text)
        return Task(
            prompt,
            rendered,
            expected,
            said if resumed is not None else _transcript(earlier, said),
            messages or (opening,),
            workspace,
            tools,
            starts,
            self._undo_on_failure,
        )

    def _tools(self, workspace: Filesystem) -> tuple[str, ...]:
        if not workspace.read_only:
            return self._native_tools
        return tuple(each for each in self._native_tools if each in READING)

    def _environment(self, home: Path, bounds: RunLimits, options: RunOptions) -> dict[str, str]:
        """Return what Claude Code is told by its environment; what it inherits is made void."""
        kept = _KEY_NAME if self._api_key is None else ""
        told = {name: "" for name in os.environ if name.startswith(_HEEDED) and name != kept}
        told |= _SETTINGS
        told["CLAUDE_CONFIG_DIR"] = str(home)
        told["CLAUDE_CODE_TMPDIR"] = str(home / "tmp")
        told["CLAUDE_CODE_MAX_RETRIES"] = str(options.retries.max_retries)
        told["API_TIMEOUT_MS"] = str(int(options.request_timeout * 1000))
        told["MAX_MCP_OUTPUT_TOKENS"] = str(options.max_result_characters)
        told["MAX_STRUCTURED_OUTPUT_RETRIES"] = str(options.output_retries + 1)
        longest = bounds.tokens_left(options.max_tokens)
        if longest is not None:
            told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(longest)
        if self._api_key is not None:
            told[_KEY_NAME] = self._api_key
        if self._url is not None:
            told["ANTHROPIC_BASE_URL"] = self._url
        return told

    def _made_home(self) -> Path:
        """Return where Claude Code keeps what is its own: a directory that is ours."""
        with self._lock:
            if self._home is None:
                self._home = Path(tempfile.mkdtemp(prefix="wink-claude-"))
                for name in ("nowhere", "tmp", "prompts"):
                    (self._home / name).mkdir()
                self._remove_home = weakref.finalize(
                    self, shutil.rmtree, self._home, ignore_errors=True
                )
            return self._home


def _parted(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], str]:
    """Return what was said before, and what is asked now."""
    place = len(messages)
    while place > 0 and isinstance(messages[place - 1], UserMessage):
        place -= 1
    return messages[:place], "\n\n".join(each.text for each in messages[place:])


def _session_of(earlier: Sequence[Message], home: Path) -> str | None:
    """Return the session that a conversation was had in, if it is still there."""
    for message in reversed(earlier):
        if isinstance(message, AssistantMessage):
            found = message.extras.get(SESSION)
            if isinstance(found, str) and any(home.glob(f"projects/*/{found}.jsonl")):
                return found
            return None
    return None


def _transcript(earlier: Sequence[Message], said: str) -> str:
    """Return what is asked, with a conversation that was had elsewhere."""
    if not earlier:
        return said
    turns = "\n\n".join(f"{each.role}: {each.text}" for each in earlier if each.text)
    return f"The conversation so far:\n\n{turns}\n\nNow:\n\n{said}"


def _system_prompt(home: Path, text: str) -> SystemPromptFile:
    # a file, since an argument of a program can only be so long
    place = home / "prompts" / f"{uuid4()}.txt"
    place.write_text(text, encoding="utf-8")
    return SystemPromptFile(type="file", path=str(place))
