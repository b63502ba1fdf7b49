"""What a run is judged by: a whole answer, the user's tests, and its network traffic."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weakincentives.adapters import (
    Message,
    PromptResponse,
    StepLimitError,
    UserMessage,
    attach_partial,
    partial_response,
)
from weakincentives.characters import strip_byte_escapes
from weakincentives.cli.run.view import View
from weakincentives.cli.terminal import escape_controls
from weakincentives.cli.units import format_count, pick
from weakincentives.contrib.tools.shell import ShellLimits
from weakincentives.errors import WinkError
from weakincentives.posix import display_paths
from weakincentives.runtime import CommandOutcome
from weakincentives.runtime.timeline import record_as
from weakincentives.sandbox import ExecResult, NetworkConnection, Sandbox, format_rule

DEFAULT_TEST_ROUNDS = 3
"""How often a failure of the test command goes back to the model."""
_MAX_LINES = 100  # of the output in a message
_MAX_CHARACTERS = 8_000
_MAX_OUTPUT = 64 * 1024  # bytes of each stream that are kept, half of them at the end
_MAX_SHOWN = 6  # lines of a failure, for the user
_LIMITS = ShellLimits()
_MAX_HOSTS = 5  # named in a line of text


class TestsFailedError(WinkError, RuntimeError):
    """The test command still fails after the last round."""

    __test__ = False  # for pytest, which takes it for a test


class IncompleteAnswerError(WinkError, RuntimeError):
    """The answer of the model is empty, or ends at a limit of its provider."""


def check_answer(response: PromptResponse[Any]) -> PromptResponse[Any]:
    """Return a response with a whole answer.

    Raises:
        IncompleteAnswerError: It is empty or cut off, although the model was asked to continue.
    """
    if response.stop_reason != "length" and response.text.strip():
        return response
    is_cut = response.stop_reason == "length"
    fact = "was cut off at the output limit" if is_cut else "is empty"
    error = IncompleteAnswerError(f"The answer of the model {fact}, so the task may not be done")
    attach_partial(error, response)
    raise error


@dataclass(frozen=True, slots=True)
class TestCommand:
    """The command that decides whether a run succeeded, and how often the model may correct it."""

    __test__ = False  # for pytest

    line: str
    rounds: int = DEFAULT_TEST_ROUNDS

    def run(
        self, sandbox: Sandbox, seconds: float, on_output: Callable[[str, bytes], object]
    ) -> "TestRun":
        """Run the command line in a shell in the workspace.

        Raises:
            SandboxUnavailableError: The sandbox cannot run it.
        """
        found = sandbox.exec(
            _LIMITS.check_script(self.line),
            timeout=max(seconds, 0.001),
            max_output=_MAX_OUTPUT,
            on_output=on_output,
        )
        return TestRun(self.line, found)


@record_as("test")
@dataclass(frozen=True, slots=True)
class TestsFinished:
    """The user's test command has ended; no slice keeps this event."""

    __test__ = False  # for pytest

    params: Mapping[str, str]
    command: CommandOutcome
    text: str
    """The end of what it printed."""
    duration_ms: float


@dataclass(frozen=True, slots=True)
class TestRun:
    """One run of the test command."""

    __test__ = False  # for pytest

    command: str
    result: ExecResult

    @property
    def passed(self) -> bool:
        """Whether the exit code is 0."""
        return self.result.success

    @property
    def outcome(self) -> str:
        """How it ended, in few words."""
        if self.passed:
            return "passed"
        if self.result.timed_out:
            return f"stopped after {self.result.duration_ms / 1000:.0f} s"
        return f"exit code {self.result.exit_code}"

    @property
    def event(self) -> "TestsFinished":
        """What a recording keeps of it."""
        result = self.result
        outcome = CommandOutcome(
            exit_code=result.exit_code, signal=result.signal, timed_out=result.timed_out
        )
        params = {"command": self.command}
        return TestsFinished(params, outcome, self.tail(), result.duration_ms)

    def tail(self) -> str:
        """Return the last lines of the output, both streams."""
        streams = (self.result.out.data, self.result.err.data)
        text = "\n".join(
            strip_byte_escapes(each).decode("utf-8", "replace").rstrip() for each in streams if each
        )
        lines = text[-_MAX_CHARACTERS:].strip("\n").split("\n")
        return "\n".join(lines[-_MAX_LINES:])

    def feedback(self) -> str:
        """Return the message that tells the model about a failure."""
        fact = f"After your last answer the user's test command was run, and it failed: {self}."
        tail = self.tail()
        # longer than what could end the block in it
        fence = "`" * (max(map(len, ["``", *re.findall("`+", tail)])) + 1)
        block = f"\n\n{fence}\n{tail}\n{fence}"
        output = f"The end of its output:{block}" if tail else "It printed nothing."
        request = "Fix the cause, not the test command, and answer again when you are done."
        return f"{fact} {request} {output}"

    def __str__(self) -> str:
        """Return the command and how it ended."""
        return f"`{self.command}`, {self.outcome}"


def ask_until_tests_pass(
    ask: Callable[[Sequence[Message], int], PromptResponse[Any]],
    messages: Sequence[Message],
    *,
    test: TestCommand | None,
    run_tests: Callable[[TestCommand], TestRun],
    max_steps: int,
) -> PromptResponse[Any]:
    """Let a model work until it answers and the tests pass; return what was done in all rounds.

    `ask` lets the model work until it answers, with a conversation and a limit of steps; those of
    all rounds are at most `max_steps`.

    Raises:
        TestsFailedError: The tests still fail after the last round.
        StepLimitError: The tests fail, and there are no steps left.
    """
    total: PromptResponse[Any] | None = None
    number = 0
    while True:
        try:
            response = ask(messages, max_steps - (0 if total is None else total.steps))
            total = _add(total, response)
            failure = None if test is None else run_tests(test)
            if test is None or failure is None or failure.passed:
                return total
            if number == test.rounds:
                raise TestsFailedError(f"The tests still fail: {failure}")
            if total.steps >= max_steps:
                raise StepLimitError(f"The tests fail, and no steps are left: {failure}")
        except BaseException as error:
            partial = partial_response(error)
            done = total if partial is None else _add(total, partial)
            if done is not None:
                attach_partial(error, done)
            raise
        number += 1
        messages = (*total.messages, UserMessage(failure.feedback()))


def show_test(view: View, run: TestRun, number: int) -> None:
    """Show a run of the test command; `number` is how often a failure went back before."""
    facts = {
        **pick(run, "command", "passed"),
        "round": number,
        **pick(run.result, "exit_code", "timed_out"),
        "duration_ms": round(run.result.duration_ms),
        "output": run.tail(),
    }
    lines = run.tail().split("\n")[-_MAX_SHOWN:] if run.tail() and not run.passed else []
    text = "\n".join((f"  tests: {run}", *(f"    {line}" for line in lines)))
    view.emit("test", facts, escape_controls(text))


def _add(earlier: PromptResponse[Any] | None, response: PromptResponse[Any]) -> PromptResponse[Any]:
    """Return the response of a later round with what the earlier ones have used."""
    if earlier is None:
        return response
    return replace(
        response,
        tool_results=(*earlier.tool_results, *response.tool_results),
        usage=earlier.usage + response.usage,
        steps=earlier.steps + response.steps,
    )


@dataclass(slots=True)
class HostTraffic:
    """The connections to one host and port; those that failed count as made."""

    host: str
    port: int
    connections: int = 0
    refused: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


def count_traffic(connections: Iterable[NetworkConnection]) -> list[HostTraffic]:
    """Return the traffic of each host, in the order of the first connections."""
    found: dict[tuple[str, int], HostTraffic] = {}
    for each in connections:
        traffic = found.setdefault((each.host, each.port), HostTraffic(each.host, each.port))
        traffic.connections += each.allowed
        traffic.refused += not each.allowed
        traffic.bytes_sent += each.bytes_sent
        traffic.bytes_received += each.bytes_received
    return list(found.values())


def describe_traffic(traffic: Sequence[HostTraffic]) -> str:
    """Return what a line says to the user; empty if there was no traffic."""
    made = [
        f"{describe_host(each.host, each.port)} {format_count(each.connections, 'connection')}"
        for each in traffic
        if each.connections
    ]
    refused = [
        f"{describe_host(each.host, each.port)} {each.refused}" for each in traffic if each.refused
    ]
    parts = [display_paths(made, _MAX_HOSTS)] if made else []
    parts += [f"refused: {display_paths(refused, _MAX_HOSTS)}"] if refused else []
    return f"network: {'; '.join(parts)}" if parts else ""


def describe_host(host: str, port: int) -> str:
    """Return a host as a rule would name it."""
    return format_rule(host, port) if host else "an invalid request"
