"""Models of many providers through LiteLLM: the extra `litellm`.

It does not go together with the extra `openai`. LiteLLM's own retries are off: a run has its own.
Which keys and URLs it takes from the environment is LiteLLM's to decide; it looks nothing up in
the network and reads no `.env` file. Responses of its OpenAI client are bounded by hooks, which
ignore requests that are not ours.
"""

import os
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.cancellation import CancellationToken
from weakincentives.adapters.chat.request import build_chat_request
from weakincentives.adapters.chat.response import ChatResponse
from weakincentives.adapters.errors import ProviderError
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.errors import (
    Endpoint,
    connection_error,
    error_from_response,
    incomplete_response,
    moved,
    timeout_error,
)
from weakincentives.adapters.http.redaction import header_secrets, redact, redact_url
from weakincentives.adapters.loop.limits import RunLimits
from weakincentives.adapters.loop.timeout import RequestTimeoutError, TimedRequest
from weakincentives.adapters.messages import Completion, CompletionRequest

MAX_STREAM = 64 * 1024 * 1024
"""How many bytes an answer may have that is streamed."""
MAX_WHOLE = 8 * 1024 * 1024
"""How many bytes an answer may have that is not."""
MAX_FAILURE = 128 * 1024
"""How many bytes of a failure are read; the rest is left."""
_PLAIN = ("", "identity")


@dataclass(slots=True)
class Limits:
    """What one request may take; `failure` is why its response was not taken."""

    endpoint: Endpoint
    ends: float
    is_streamed: bool
    failure: ProviderError | None = None


current_limits: ContextVar[Limits | None] = ContextVar("current_limits", default=None)
"""The limits of the request that this thread makes."""


def limit_client(client: httpx.Client) -> httpx.Client:
    """Return the client with hooks that limit the responses to requests with limits."""
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], _ask_for_plain],
        "response": [*hooks["response"], _limit],
    }
    return client


def _ask_for_plain(request: httpx.Request) -> None:
    # httpx unpacks a piece as a whole, however large that is
    if current_limits.get() is not None:
        request.headers["accept-encoding"] = "identity"


def _limit(response: httpx.Response) -> None:
    limits = current_limits.get()
    if limits is None:
        return
    location = response.headers.get("location")
    if response.is_redirect and location is not None:
        limits.failure = moved(limits.endpoint, response.status_code, location)
        raise httpx.RequestError("redirected")
    encoding = response.headers.pop("content-encoding", "").strip().lower()
    # a charset can be a decompressor
    response.headers["content-type"] = response.headers.get("content-type", "").partition(";")[0]
    stream = response.stream
    if isinstance(stream, httpx.SyncByteStream):
        is_packed = encoding not in _PLAIN
        response.stream = _Body(stream, limits, response.is_success, is_packed=is_packed)


class _Body(httpx.SyncByteStream):
    """A body that comes to an end: that of a failure is cut off, that of an answer refused."""

    def __init__(
        self, inner: httpx.SyncByteStream, limits: Limits, is_answer: bool, *, is_packed: bool
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._is_answer = is_answer
        self._is_packed = is_packed
        whole = MAX_STREAM if limits.is_streamed else MAX_WHOLE
        self._most = whole if is_answer else MAX_FAILURE

    def __iter__(self) -> Iterator[bytes]:
        left = self._most
        if self._is_packed:
            self._refuse("it is packed, which was not asked for")
            return
        for piece in self._inner:
            if time.monotonic() > self._limits.ends:
                raise httpx.ReadTimeout("the time of the request is over")
            left -= len(piece)
            if left < 0:
                self._refuse(f"it is longer than {self._most} bytes")
                return
            yield piece

    def close(self) -> None:
        self._inner.close()

    def _refuse(self, reason: str) -> None:
        if self._is_answer:
            self._limits.failure = incomplete_response(self._limits.endpoint, reason)
            raise httpx.ReadError(reason)


# it heeds these while it is imported: no prices from the network, no variables from a file
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
os.environ.setdefault("LITELLM_MODE", "PRODUCTION")


try:
    import litellm  # pyright: ignore[reportMissingImports] # its environment is another
    import openai  # its errors are those of LiteLLM
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "Models of litellm need an extra: pip install 'weakincentives[litellm]'", name=_error.name
    ) from _error


__all__ = ["LiteLLMAdapter"]
_sdk: Any = litellm
_sdk.suppress_debug_info = True  # it would print advice
_TIMEOUT = 600.0
_SAID = 100_000
_SECRET_NAME = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
_URL = "the provider's own URL"
_KEY = "api_key, or the variable that LiteLLM reads for this provider"
# what is missing on our side is told as a failure of the other
_NO_KEY = re.compile(r"missing credentials|api.?key.*(must be set|not set|not found|missing)", re.I)
_HINTS = (
    ("(?=.*provider not provided)", "name the provider too, as litellm:openai/gpt-5"),
    ("(?=.*(response_format|json_schema))", "give native_output=False"),
    ("(?=.*temperature)", "leave the temperature out"),
)


class LiteLLMAdapter(ProviderAdapter):
    """Asks a model by LiteLLM; its name begins with the provider, as `openai/gpt-5`."""

    name = "litellm"

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        native_output: bool = True,
        pictures: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Ask `model`.

        Args:
            model: Its name, as LiteLLM calls it: `anthropic/claude-opus-4-6`, `ollama/llama3.2`.
            api_key: None is what LiteLLM finds in the environment for the provider.
            base_url: Where the API is; None is for LiteLLM to decide.
            headers: Sent with every request.
            native_output: Have the provider see to structured output. For models that cannot,
                False has the schema told to the model in words.
            pictures: Show the model the pictures that tools return, if it can see.
            arguments: What else `litellm.completion` is given: `reasoning_effort`,
                `api_version`, `aws_region_name` and so on.
        """
        self.model = model
        self.native_output = native_output
        self._pictures = pictures
        self._arguments: dict[str, Any] = {
            "model": model,
            "api_key": api_key,
            "base_url": base_url,
            "extra_headers": dict(headers) if headers else None,
            # neither its own retries nor those of the clients that it uses
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": False,
            # it would look for tools of an MCP gateway, with packages that need not be there
            "_skip_mcp_handler": True,
            **(arguments or {}),
        }
        url = _URL if base_url is None else redact_url(base_url)
        secrets = (*header_secrets(headers or {}), *_texts(arguments), base_url or "")
        self._endpoint = Endpoint(self.name, model, url, _KEY, api_key or "", secrets)

    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Ask the model once; the answer is streamed if somebody listens.

        Raises:
            ThrottledError: The provider wants fewer requests.
            TransientError: It failed, took too long, or was not reached.
            InvalidRequestError: It refuses the request as it is.
            AuthenticationError: It does not know us.
            ContextTooLongError: The conversation is too long for the model.
        """
        body = build_chat_request(
            request,
            max_tokens_field="max_tokens",
            native_output=self.native_output,
            with_extras=True,
            with_pictures=self._pictures,
        )
        if on_text is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        seconds = timeout or _TIMEOUT
        # what keeps a connection alive is not seen here, and would be waited for without end
        watched = TimedRequest(lambda told: self._answer(body, seconds, told), on_text)
        try:
            return watched.result(seconds, RunLimits(CancellationToken()))
        except RequestTimeoutError as error:
            raise timeout_error(self._endpoint, seconds) from error

    def _answer(
        self, body: Mapping[str, Any], seconds: float, on_text: Callable[[str], None] | None
    ) -> Completion:
        answer = ChatResponse()
        with closing(self._heard(answer, body, seconds)) as texts:
            for text in lenient.whole_characters(texts):
                if on_text is not None:
                    on_text(text)
        if not answer.has_choice:
            raise incomplete_response(self._endpoint, "there are no choices in it")
        return answer.completion()

    def _heard(
        self, answer: ChatResponse, body: Mapping[str, Any], seconds: float
    ) -> Generator[str]:
        """Make the request, put the answer together, and yield its text as it arrives."""
        ends = time.monotonic() + seconds
        streams = bool(body.get("stream"))
        limits = Limits(self._endpoint, ends, streams)
        current_limits.set(limits)  # the thread is this request's own
        _ensure_limits()
        try:
            said = _sdk.completion(timeout=seconds, **self._arguments, **body)
            for chunk in said if streams else (said,):
                if time.monotonic() > ends:
                    raise timeout_error(self._endpoint, seconds)
                yield answer.add(lenient.as_mapping(chunk.model_dump()))
            # for a stream that is cut off LiteLLM makes up a reason to stop
            if streams and not (said.received_finish_reason or said.intermittent_finish_reason):
                raise incomplete_response(self._endpoint, "the stream ended before the answer did")
            return
        except openai.APITimeoutError:
            failure = limits.failure or timeout_error(self._endpoint, seconds)
        except openai.OpenAIError as error:
            failure = limits.failure or self._failure(error)
        except lenient.AnswerError as error:
            failure = incomplete_response(self._endpoint, str(error))
        # not in the handlers: what it follows from would be in its context, and has the key
        raise failure

    def _failure(self, error: openai.OpenAIError) -> ProviderError:
        said = lenient.as_text(getattr(error, "message", None)) or str(error)
        said = redact(said, _environment_secrets(), most=_SAID)
        if isinstance(error, openai.APIConnectionError):
            return connection_error(self._endpoint, said)
        status = getattr(error, "status_code", None)
        return error_from_response(
            self._endpoint,
            said,
            status=401 if status == 500 and _NO_KEY.search(said) else status,
            headers=getattr(error, "litellm_response_headers", None),
            hints=_HINTS,
        )


def _ensure_limits() -> None:
    """Give LiteLLM a client that has limits, unless somebody has given it another."""
    session = _sdk.client_session
    if session is None or session.is_closed:
        _sdk.client_session = None
        _sdk.client_session = limit_client(_sdk.OpenAIChatCompletion._get_sync_http_client())


def _environment_secrets() -> tuple[str, ...]:
    """Return what LiteLLM may have taken for a key."""
    return tuple(value for name, value in os.environ.items() if _SECRET_NAME.search(name))


def _texts(arguments: Mapping[str, object] | None) -> Iterator[str]:
    """Yield what may be secret among other arguments."""
    for name, value in (arguments or {}).items():
        if isinstance(value, str) and _SECRET_NAME.search(name):
            yield value
