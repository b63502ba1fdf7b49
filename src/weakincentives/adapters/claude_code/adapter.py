"""Claude through the Claude Agent SDK: Claude Code runs the prompt, with its tools and ours.

Needs the extra `claude-agent-sdk`, which contains Claude Code. From the environment it takes only
`ANTHROPIC_API_KEY`, if no key is given; the settings, memories and servers of user and project are
left out. Proxies and certificates are those of the machine.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast, get_args
from uuid import uuid4

from weakincentives.extras import needs_extra

with needs_extra("claude-agent models", "claude-agent-sdk"):
    from claude_agent_sdk import ClaudeAgentOptions, EffortLevel
    from claude_agent_sdk.types import SystemPromptFile

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.claude_code.native_tools import READ_TOOLS, WRITE_TOOLS
from weakincentives.adapters.claude_code.process import PREFIX, AgentTask
from weakincentives.adapters.claude_code.run import SESSION, ClaudeCodeRun
from weakincentives.adapters.errors import InvalidRequestError
from weakincentives.adapters.http.adapter import check_key, check_url, url_secrets
from weakincentives.adapters.http.errors import Endpoint
from weakincentives.adapters.http.transport import bare_url
from weakincentives.adapters.loop.output import expected_output
from weakincentives.adapters.loop.request import RunInput
from weakincentives.adapters.messages import (
    AssistantMessage,
    Completion,
    CompletionRequest,
    Message,
    PromptResponse,
    UserMessage,
)
from weakincentives.adapters.options import Effort, RunLimits, RunOptions
from weakincentives.adapters.prices import TokenPrice, list_price
from weakincentives.filesystem import Filesystem, HostBacked

OutputT = TypeVar("OutputT")
FILE_TOOLS = ("Read", "Write", "Edit", "Glob", "Grep")
"""Claude Code's own file tools, which are safe to allow: they stay in the workspace."""
_URL = "https://api.anthropic.com"
_EXAMPLE = "http://localhost:8080"
_KEY_VARIABLE = "ANTHROPIC_API_KEY"
_KEY_SOURCE = f"{_KEY_VARIABLE} or api_key"
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_TOOL_TIMEOUT_MS = 86_400_000  # a day: our own limits end tools
# prefixes of the variables that change what Claude Code does
_VARIABLE_PREFIXES = (
    "ANTHROPIC_",
    "CLAUDE",
    "DISABLE_",
    "ENABLE_",
    "MAX_",
    "MCP_",
    "API_",
    "BASH_",
)
_SETTINGS = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    # what runs on after its call could be neither tracked nor rolled back
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_MCP_TASK_BACKGROUND": "1",
    "MCP_TOOL_TIMEOUT": str(_TOOL_TIMEOUT_MS),
    # the model sees all tools from the start
    "ENABLE_TOOL_SEARCH": "false",
}


_OPTIONS: Mapping[str, Any] = {
    "permission_mode": "acceptEdits",
    # command-line flags: stay in the workspace, and never prompt
    "extra_args": {"restricted": None, "permission-prompts": "none"},
    "setting_sources": [],
    "skills": [],
    "strict_mcp_config": True,
    "verbatim_prompts": True,
    "include_partial_messages": True,
    "max_buffer_size": _MAX_MESSAGE_BYTES,
}


class ClaudeAgentAdapter(ProviderAdapter):
    """Runs prompts with Claude Code, whose loop replaces ours.

    Args:
        model: Claude Code's name of the model.
        api_key: None takes `ANTHROPIC_API_KEY` from the environment.
        base_url: URL of the API, such as `http://localhost:8080`; None is Anthropic.
        native_tools: Claude Code's own tools that the model may use if the prompt's
            workspace is a host directory. They run without approval: `Bash` runs commands
            on the host, without isolation.
        undo_on_failure: Whether a run that fails or is cancelled restores files and session
            to their state before it.
    """

    name = "claude-agent"
    native_output = True
    supports_temperature = False
    efforts: tuple[Effort, ...] = get_args(EffortLevel)

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        native_tools: Sequence[str] = FILE_TOOLS,
        undo_on_failure: bool = False,
    ) -> None:
        """Create an adapter for `model`.

        Raises:
            AuthenticationError: The key is malformed.
            InvalidRequestError: `base_url` is not a URL.
        """
        self.model = model
        self.price: TokenPrice | None = list_price("anthropic", model) if base_url is None else None
        self._native_tools = tuple(native_tools)
        self._undo_on_failure = undo_on_failure
        url = check_url(base_url or _URL, provider=self.name, example=_EXAMPLE)
        self._url = None if base_url is None else base_url.rstrip("/").removesuffix("/v1")
        if api_key is not None:
            check_key(api_key, provider=self.name, source=_KEY_SOURCE)
        self._api_key = api_key
        secret = api_key or os.environ.get(_KEY_VARIABLE, "")  # masked in messages
        self._endpoint = Endpoint(
            self.name, model, str(bare_url(url)), _KEY_SOURCE, secret, tuple(url_secrets(url))
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
        """Not supported: Claude Code sends the requests itself.

        Raises:
            InvalidRequestError: Always.
        """
        del request, on_text, timeout
        raise InvalidRequestError(
            f"{self.name} does not support single requests, Claude Code runs its own loop:"
            " use evaluate, or an anthropic model",
            provider=self.name,
        )

    def close(self) -> None:
        """Delete the sessions of Claude Code; conversations can no longer be resumed natively."""
        with self._lock:
            remove, self._remove_home, self._home = self._remove_home, None, None
        if remove is not None:
            remove()

    def _run(self, run: RunInput[OutputT]) -> PromptResponse[OutputT]:
        return ClaudeCodeRun(run, self._create_task(run), self._endpoint).run()

    def _create_task(self, run: RunInput[Any]) -> AgentTask:
        home = self._home_directory()
        rendered, options, messages = run.rendered, run.options, tuple(run.messages)
        files = run.prompt.filesystem()
        workspace = files if isinstance(files, HostBacked) and self._native_tools else None
        tools = () if workspace is None else self._available_tools(workspace)
        expected = expected_output(rendered)
        opening = UserMessage(rendered.text)
        earlier, text = _split_request(messages or (opening,))
        resumed = _find_session(earlier, home)
        sent = messages if resumed is None else messages[len(earlier) :]
        agent = ClaudeAgentOptions(
            model=self.model,
            cwd=home / "nowhere" if workspace is None else os.path.realpath(workspace.root),
            tools=list(tools),
            allowed_tools=[
                *([f"{PREFIX}*"] if rendered.tools else []),
                *(each for each in tools if each not in (*READ_TOOLS, *WRITE_TOOLS)),
            ],
            max_turns=options.max_steps,
            effort=cast("EffortLevel | None", options.effort),
            env=self._environment(home, run.limits, options),
            resume=resumed,
            fork_session=resumed is not None,
            **_OPTIONS,
        )
        if expected is not None:
            agent.output_format = {"type": "json_schema", "schema": dict(expected.format.schema)}
        if messages and messages[0] != opening:
            agent.system_prompt = _system_prompt(home, rendered.text)
        return AgentTask(
            expected,
            text if resumed is not None else _with_transcript(earlier, text),
            tuple(media for each in sent if isinstance(each, UserMessage) for media in each.media),
            messages or (opening,),
            workspace,
            tools,
            agent,
            self._undo_on_failure,
        )

    def _available_tools(self, workspace: Filesystem) -> tuple[str, ...]:
        if not workspace.read_only:
            return self._native_tools
        return tuple(each for each in self._native_tools if each in READ_TOOLS)

    def _environment(self, home: Path, limits: RunLimits, options: RunOptions) -> dict[str, str]:
        """Return the environment of Claude Code; inherited variables that it reads are emptied."""
        inherited = _KEY_VARIABLE if self._api_key is None else ""
        variables = {
            name: ""
            for name in os.environ
            if name.startswith(_VARIABLE_PREFIXES) and name != inherited
        }
        variables |= _SETTINGS
        variables["CLAUDE_CONFIG_DIR"] = str(home)
        variables["CLAUDE_CODE_TMPDIR"] = str(home / "tmp")
        variables["CLAUDE_CODE_MAX_RETRIES"] = str(options.retries.max_retries)
        variables["API_TIMEOUT_MS"] = str(int(options.request_timeout * 1000))
        variables["MAX_MCP_OUTPUT_TOKENS"] = str(options.max_result_characters)
        variables["MAX_STRUCTURED_OUTPUT_RETRIES"] = str(options.output_retries + 1)
        max_tokens = limits.cap_tokens(options.max_tokens)
        if max_tokens is not None:
            variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(max_tokens)
        if self._api_key is not None:
            variables[_KEY_VARIABLE] = self._api_key
        if self._url is not None:
            variables["ANTHROPIC_BASE_URL"] = self._url
        return variables

    def _home_directory(self) -> Path:
        """Return a temporary directory for the files of Claude Code, created on first use."""
        with self._lock:
            if self._home is None:
                self._home = Path(tempfile.mkdtemp(prefix="wink-claude-"))
                for name in ("nowhere", "tmp", "prompts"):
                    (self._home / name).mkdir()
                self._remove_home = weakref.finalize(
                    self, shutil.rmtree, self._home, ignore_errors=True
                )
            return self._home


def _split_request(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], str]:
    """Split off the user messages at the end; return what precedes them, and their text."""
    start = len(messages)
    while start > 0 and isinstance(messages[start - 1], UserMessage):
        start -= 1
    return messages[:start], "\n\n".join(each.text for each in messages[start:])


def _find_session(earlier: Sequence[Message], home: Path) -> str | None:
    """Return the session of a conversation, if its files still exist."""
    for message in reversed(earlier):
        if isinstance(message, AssistantMessage):
            session = message.extras.get(SESSION)
            if isinstance(session, str) and any(home.glob(f"projects/*/{session}.jsonl")):
                return session
            return None
    return None


def _with_transcript(earlier: Sequence[Message], text: str) -> str:
    """Return the request with the text of a conversation that took place elsewhere."""
    if not earlier:
        return text
    turns = "\n\n".join(f"{each.role}: {each.text}" for each in earlier if each.text)
    return f"The conversation so far:\n\n{turns}\n\nNow:\n\n{text}"


def _system_prompt(home: Path, text: str) -> SystemPromptFile:
    # a file, because the length of a command-line argument is limited
    path = home / "prompts" / f"{uuid4()}.txt"
    path.write_text(text, encoding="utf-8")
    return SystemPromptFile(type="file", path=str(path))
