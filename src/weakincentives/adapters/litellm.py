"""Models of many providers through LiteLLM: the extra `litellm`.

Cannot be installed together with the extra `openai`. LiteLLM's own retries are off, because a run
has its own. LiteLLM decides which keys and URLs it takes from the environment; it fetches nothing
when it is imported and reads no `.env` file. Hooks limit the responses of its OpenAI client, and
ignore requests that are not ours.
"""

import os
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from weakincentives.extras import needs_extra

# it reads these on import: no prices from the network, no variables from a file
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
os.environ.setdefault("LITELLM_MODE", "PRODUCTION")

with needs_extra("litellm models", "litellm"):
    import httpx
    import litellm  # pyright: ignore[reportMissingImports] # it has its own environment
    import openai  # LiteLLM's errors derive from its errors

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.cancellation import CancellationToken
from weakincentives.adapters.chat_completions import ChatResponse, build_chat_request
from weakincentives.adapters.errors import ProviderError
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.errors import (
    Endpoint,
    connection_error,
    error_from_response,
    incomplete_response,
    redirect_error,
    timeout_error,
)
from weakincentives.adapters.loop.timeout import RequestTimeoutError, TimedRequest
from weakincentives.adapters.messages import Completion, CompletionRequest
from weakincentives.adapters.options import RunLimits
from weakincentives.adapters.prices import TokenPrice
from weakincentives.redaction import header_secrets, redact, redact_url

__all__ = ["LiteLLMAdapter"]
_sdk: Any = litellm
_sdk.suppress_debug_info = True  # it would print advice
_DEFAULT_TIMEOUT = 600.0
_MAX_MESSAGE = 100_000
_SECRET_NAME = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
_URL = "the provider's own URL"
_KEY_SOURCE = "api_key, or the variable that LiteLLM reads for this provider"
# LiteLLM reports a missing key as a failure of the server
_NO_KEY = re.compile(r"missing credentials|api.?key.*(must be set|not set|not found|missing)", re.I)
_HINTS = (
    ("(?=.*provider not provided)", "name the provider too, as in litellm:openai/gpt-5"),
    ("(?=.*(response_format|json_schema))", "pass native_output=False"),
    ("(?=.*temperature)", "omit the temperature"),
    ("(?=.*effort)", "omit the effort, or choose another"),
)
_UNCOMPRESSED = ("", "identity")
_PRICES = (
    "input_cost_per_token",
    "output_cost_per_token",
    "cache_read_input_token_cost",
    "cache_creation_input_token_cost",
)


class LiteLLMAdapter(ProviderAdapter):
    """Sends requests through LiteLLM; model names start with the provider: `openai/gpt-5`.

    Args:
        model: LiteLLM's name of the model: `anthropic/claude-opus-4-6`, `ollama/llama3.2`.
        api_key: None lets LiteLLM find the provider's key in the environment.
        base_url: URL of the API; None lets LiteLLM decide.
        headers: Sent with every request.
        native_output: Let the provider enforce structured output. False, for models that
            cannot, describes the schema in the prompt.
        pictures: Send the pictures that tools return, for models with vision.
        arguments: More arguments of `litellm.completion`: `reasoning_effort`,
            `api_version`, `aws_region_name` and so on.
    """

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
        """Create an adapter for `model`."""
        self.model = model
        self.price: TokenPrice | None = _known_price(model) if base_url is None else None
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
            # it would look for tools of an MCP gateway, with packages that may be missing
            "_skip_mcp_handler": True,
            **(arguments or {}),
        }
        url = _URL if base_url is None else redact_url(base_url)
        secrets = (*header_secrets(headers or {}), *_argument_secrets(arguments), base_url or "")
        self._endpoint = Endpoint(self.name, model, url, _KEY_SOURCE, api_key or "", secrets)

    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Send one request; the response is streamed if `on_text` is given."""
        body = build_chat_request(
            request,
            max_tokens_field="max_tokens",
            native_output=self.native_output,
            with_extras=True,
            with_pictures=self._pictures,
        )
        if on_text is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        seconds = timeout or _DEFAULT_TIMEOUT

        def send(on_text: Callable[[str], None] | None) -> Completion:
            decoder = ChatResponse()
            texts = self._stream_text(decoder, body, seconds)
            return lenient.collect_completion(decoder, texts, self._endpoint, on_text)

        # LiteLLM hides the keep-alive traffic of a connection, which could go on forever
        timed = TimedRequest(send, on_text)
        try:
            return timed.result(seconds, RunLimits(CancellationToken()))
        except RequestTimeoutError as error:
            raise timeout_error(self._endpoint, seconds) from error

    def _stream_text(
        self, decoder: ChatResponse, body: Mapping[str, Any], seconds: float
    ) -> Generator[str]:
        """Send the request, feed the response to the decoder, and yield its text."""
        ends = time.monotonic() + seconds
        streams = bool(body.get("stream"))
        limits = _ResponseLimits(self._endpoint, seconds, ends, streams)
        _response_limits.set(limits)  # the thread serves only this request
        _install_limits()
        try:
            response = _sdk.completion(timeout=seconds, **{**self._arguments, **body})
            for chunk in response if streams else (response,):
                if time.monotonic() > ends:
                    raise timeout_error(self._endpoint, seconds)
                yield decoder.add(lenient.as_mapping(chunk.model_dump()))
            # LiteLLM invents a finish reason for a stream that breaks off
            if streams and not (
                response.received_finish_reason or response.intermittent_finish_reason
            ):
                raise incomplete_response(self._endpoint, "the stream ended before the answer did")
            return
        except openai.APITimeoutError:
            failure = limits.failure or timeout_error(self._endpoint, seconds)
        except openai.OpenAIError as error:
            failure = limits.failure or self._translate_error(error)
        except lenient.ResponseError as error:
            failure = incomplete_response(self._endpoint, str(error))
        # outside the handlers: the error's context would contain the request with the key
        raise failure

    def _translate_error(self, error: openai.OpenAIError) -> ProviderError:
        message = lenient.as_text(getattr(error, "message", None)) or str(error)
        message = redact(message, _environment_secrets(), max_length=_MAX_MESSAGE)
        if isinstance(error, openai.APIConnectionError):
            return connection_error(self._endpoint, message)
        status = getattr(error, "status_code", None)
        return error_from_response(
            self._endpoint,
            message,
            status=401 if status == 500 and _NO_KEY.search(message) else status,
            headers=getattr(error, "litellm_response_headers", None),
            hints=_HINTS,
        )


@dataclass(slots=True)
class _ResponseLimits:
    """Limits of one response; `failure` is the reason if it was rejected."""

    endpoint: Endpoint
    seconds: float
    ends: float
    is_streamed: bool
    failure: ProviderError | None = None


_response_limits: ContextVar[_ResponseLimits | None] = ContextVar("response_limits", default=None)


def _install_limits() -> None:
    """Give LiteLLM a client with limits, unless the user has set a client."""
    session = _sdk.client_session
    if session is None or session.is_closed:
        _sdk.client_session = None
        client = _sdk.OpenAIChatCompletion._get_sync_http_client()  # noqa: SLF001  the only way to its defaults
        _sdk.client_session = _add_hooks(client)


def _add_hooks(client: httpx.Client) -> httpx.Client:
    """Return the client with hooks that limit the responses to our requests."""
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], _disable_compression],
        "response": [*hooks["response"], _limit_response],
    }
    return client


def _disable_compression(request: httpx.Request) -> None:
    # httpx decompresses a chunk as a whole, however large it becomes
    if _response_limits.get() is not None:
        request.headers["accept-encoding"] = "identity"


def _limit_response(response: httpx.Response) -> None:
    limits = _response_limits.get()
    if limits is None:
        return
    location = response.headers.get("location")
    if response.is_redirect and location is not None:
        limits.failure = redirect_error(limits.endpoint, response.status_code, location)
        raise httpx.RequestError("redirected")
    encoding = response.headers.pop("content-encoding", "").strip().lower()
    # a charset can be a decompressor
    response.headers["content-type"] = response.headers.get("content-type", "").partition(";")[0]
    stream = response.stream
    if isinstance(stream, httpx.SyncByteStream):
        is_compressed = encoding not in _UNCOMPRESSED
        response.stream = _LimitedBody(
            stream, limits, is_success=response.is_success, is_compressed=is_compressed
        )


class _LimitedBody(httpx.SyncByteStream):
    """A body of limited size: an error is truncated, an answer that is too long rejected."""

    def __init__(
        self,
        inner: httpx.SyncByteStream,
        limits: _ResponseLimits,
        *,
        is_success: bool,
        is_compressed: bool,
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._is_success = is_success
        self._is_compressed = is_compressed
        max_bytes = lenient.MAX_STREAM if limits.is_streamed else lenient.MAX_BODY
        self._max_bytes = max_bytes if is_success else lenient.MAX_ERROR_BODY

    def __iter__(self) -> Iterator[bytes]:
        left = self._max_bytes
        if self._is_compressed:
            self._reject("it is compressed, which was not requested")
            return
        for piece in self._inner:
            if time.monotonic() > self._limits.ends:
                # LiteLLM does not pass on a timeout in the middle of a stream as one
                self._limits.failure = timeout_error(self._limits.endpoint, self._limits.seconds)
                raise httpx.ReadTimeout("the request timed out")
            left -= len(piece)
            if left < 0:
                self._reject(f"it is longer than {self._max_bytes} bytes")
                return
            yield piece

    def close(self) -> None:
        self._inner.close()

    def _reject(self, reason: str) -> None:
        if self._is_success:
            self._limits.failure = incomplete_response(self._limits.endpoint, reason)
            raise httpx.ReadError(reason)


def _environment_secrets() -> tuple[str, ...]:
    """Return the variables that LiteLLM may have used as a key."""
    return tuple(value for name, value in os.environ.items() if _SECRET_NAME.search(name))


def _argument_secrets(arguments: Mapping[str, object] | None) -> Iterator[str]:
    """Yield the arguments that may be secret."""
    for name, value in (arguments or {}).items():
        if isinstance(value, str) and _SECRET_NAME.search(name):
            yield value


def _known_price(model: str) -> TokenPrice | None:
    """Return the price that LiteLLM's own table has for a model."""
    bare_name = model.partition("/")[2]
    found = lenient.as_mapping(_sdk.model_cost.get(model) or _sdk.model_cost.get(bare_name))
    prices = [found.get(name) for name in _PRICES]
    million = [each * 1_000_000 if isinstance(each, int | float) else None for each in prices]
    if million[0] is None or million[1] is None:
        return None
    return TokenPrice(million[0], million[1], million[2], million[3])
