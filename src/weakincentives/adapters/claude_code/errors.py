"""What it means that Claude Code ended without an answer."""

from claude_agent_sdk import ClaudeSDKError, CLINotFoundError, ResultMessage

from weakincentives.adapters.errors import (
    AdapterError,
    AuthenticationError,
    InvalidRequestError,
    OutputError,
    StepLimitError,
)
from weakincentives.adapters.http.errors import (
    Endpoint,
    connection_error,
    error_from_response,
    excerpt,
    incomplete_response,
)

_NO_KEY = ("not logged in", "/login", "invalid api key")
_UNREACHABLE = ("econn", "connection refused", "connection dropped", "unable to connect")


def error_from_exit(
    error: BaseException | None, endpoint: Endpoint, complaints: str
) -> BaseException:
    """Return the error that the end of the process is.

    Args:
        error: What the SDK raised.
        endpoint: Who was asked.
        complaints: What the process wrote to its standard error.
    """
    if isinstance(error, CLINotFoundError | PermissionError | FileNotFoundError):
        return InvalidRequestError(
            "Claude Code cannot be started, install the extra again:"
            f" {excerpt(endpoint, str(error))}",
            provider=endpoint.provider,
        )
    if error is None or isinstance(error, ClaudeSDKError | OSError | TimeoutError):
        # without its cause: that has what the process wrote, which may have the key
        said = complaints or ("it said nothing" if error is None else str(error))
        return incomplete_response(endpoint, f"Claude Code ended: {said}")
    return error


def error_from_result(
    result: ResultMessage, endpoint: Endpoint, *, steps: int, calls: int
) -> AdapterError:
    """Return the error that a result is."""
    said = result.result or "; ".join(result.errors or ()) or result.subtype
    if result.subtype == "error_max_turns":
        return StepLimitError(
            f"The model came to no answer in {steps} steps and {calls} tool calls: raise"
            " max_steps, or make the task smaller"
        )
    if result.subtype == "error_max_structured_output_retries":
        shown = excerpt(endpoint, said)
        return OutputError(f"The answer is not what the prompt asks for: {shown}")
    lower = said.lower()
    if result.api_error_status is None and any(each in lower for each in _NO_KEY):
        return AuthenticationError(
            f"{endpoint.provider} does not accept the key, check {endpoint.key}:"
            f" {excerpt(endpoint, said)!r}",
            provider=endpoint.provider,
        )
    if result.api_error_status is None and any(each in lower for each in _UNREACHABLE):
        return connection_error(endpoint, said)
    return error_from_response(endpoint, said, status=result.api_error_status)
