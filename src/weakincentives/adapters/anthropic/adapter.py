"""Claude at Anthropic, and whatever speaks its Messages API.

Needs the extra `anthropic`. The SDK's own retries are off: a run has its own. Of the environment
only `ANTHROPIC_API_KEY` is read, and only where no key is given; proxies and certificates are
those of the machine.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from typing import Any, TypeAlias, cast

try:
    import httpx2
    from anthropic import (
        Anthropic,
        AnthropicError,
        APIResponse,
        APIStatusError,
        APITimeoutError,
        DefaultHttpxClient,
    )
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "Models of anthropic need an extra: pip install 'weakincentives[anthropic]'",
        name=_error.name,
    ) from _error

from weakincentives.adapters.anthropic.request import build_message_request
from weakincentives.adapters.anthropic.response import MessageResponse
from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.errors import ProviderError
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.client import (
    DEFAULT_TIMEOUT,
    NO_KEY,
    body_pieces,
    check_key,
    checked_headers,
    checked_url,
    failure_of,
    redirect_of,
    secrets_of,
    shown_url,
    whole_body,
)
from weakincentives.adapters.http.errors import (
    Endpoint,
    error_from_response,
    incomplete_response,
    not_the_api,
    timeout_error,
)
from weakincentives.adapters.http.sse import event_data
from weakincentives.adapters.http.transport import bare_url, limit_client, request_time
from weakincentives.adapters.messages import Completion, CompletionRequest

_Ask: TypeAlias = Callable[..., AbstractContextManager[APIResponse[Any]]]
_URL = "https://api.anthropic.com"
_EXAMPLE = "http://localhost:8080"
_KEY = "ANTHROPIC_API_KEY or api_key"
_MAX_TOKENS = 32_000  # what every model that is still served can say at once
# a failure in the middle of a stream has a name, but no status
_STATUS: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
# what models and servers refuse, and the argument that leaves it out
_HINTS = (
    (".*max_tokens.*(maximum|limit)", "give a smaller max_tokens"),
    (".*(text_editor_|bash_)[0-9]", "give native_tools=False"),
    (".*(output_config|output_format|structured output)", "give native_output=False"),
    (".*cache_control", "give cache=False"),
    (".*temperature", "leave the temperature out"),
)


class AnthropicAdapter(ProviderAdapter):
    """Asks a model by the Messages API, at Anthropic or at any other `base_url`."""

    name = "anthropic"

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, object] | None = None,
        max_tokens: int = _MAX_TOKENS,
        native_output: bool = True,
        native_tools: bool = True,
        cache: bool = True,
        pictures: bool | None = None,
    ) -> None:
        """Ask `model`.

        Args:
            model: Its name, as the server calls it.
            api_key: None is what the environment has as `ANTHROPIC_API_KEY`. A server of your own
                may do without.
            base_url: Where the API is, as `http://localhost:8080`, with or without `/v1`; None is
                Anthropic.
            headers: Sent with every request: what a router or a beta feature needs.
            extra_body: Sent with every request: `thinking`, an `output_config` with the effort,
                and whatever else the API takes.
            max_tokens: The longest answer, reasoning included, where a run does not say.
            native_output: Have the API see to structured output. For models and servers that
                cannot, False has the schema told to the model in words.
            native_tools: Send the text editor and bash, where tools have their names and shapes,
                by the types that the API knows; what they do here is then in the system prompt.
            cache: Have the API keep what comes again in the next step, in requests with tools.
            pictures: Show the model the pictures that tools return; None does at Anthropic only,
                since a server whose model cannot see refuses the whole conversation.

        Raises:
            AuthenticationError: There is no key, or it cannot be one.
            InvalidRequestError: `base_url` is no URL, or a header cannot be sent.
            ValueError: `max_tokens` is not more than 0.
        """
        if max_tokens <= 0:
            raise ValueError(f"max_tokens must be more than 0: {max_tokens!r}")
        self.model = model
        self.native_output = native_output
        self._native_tools = native_tools
        self._cache = cache
        self._max_tokens = max_tokens
        self._extra_body = dict(extra_body or {})
        # the SDK adds the version to the path, and other SDKs want it in the URL
        given = _URL if base_url is None else base_url.rstrip("/").removesuffix("/v1")
        url = checked_url(given, provider=self.name, example=_EXAMPLE)
        sent = checked_headers(headers, provider=self.name)
        self._client = _Client(api_key, url, sent)
        key = self._client.api_key or ""
        self._endpoint = Endpoint(
            self.name, model, shown_url(url), _KEY, key, secrets_of(url, sent)
        )
        is_elsewhere = url.host != httpx2.URL(_URL).host
        self._pictures = not is_elsewhere if pictures is None else pictures
        if not key and is_elsewhere:
            self._client.api_key = NO_KEY
        check_key(self._client.api_key or "", provider=self.name, where=_KEY)

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
        try:
            return self._completion(request, on_text, timeout)
        except ProviderError as error:
            failure = error
        # without the frames that it comes from: their variables hold what the server sent
        raise failure.with_traceback(None)

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def _completion(
        self,
        request: CompletionRequest,
        on_text: Callable[[str], None] | None,
        timeout: float | None,
    ) -> Completion:
        answer = MessageResponse()
        seconds = DEFAULT_TIMEOUT if timeout is None else timeout
        body = self._body(request, stream=on_text is not None)
        with (
            request_time(seconds, self._endpoint.all_secrets) as ends,
            closing(self._heard(answer, body, ends, seconds)) as texts,
        ):
            for text in lenient.whole_characters(texts):
                if on_text is not None:
                    on_text(text)
        if not answer.has_content:
            raise incomplete_response(self._endpoint, "there is no content in it")
        return answer.completion()

    def _body(self, request: CompletionRequest, *, stream: bool) -> dict[str, Any]:
        """Return the arguments of the SDK's method; what it has none for is passed through."""
        body = build_message_request(
            request,
            max_tokens=self._max_tokens,
            native_output=self.native_output,
            native_tools=self._native_tools,
            cache=self._cache,
            with_pictures=self._pictures,
        )
        given = {name: body.pop(name) for name in ("max_tokens", "messages")}
        extra = {**body, **self._extra_body}
        if "output_config" in body:
            told = lenient.as_mapping(self._extra_body.get("output_config"))
            extra["output_config"] = {**told, **body["output_config"]}
        return {**given, **({"stream": True} if stream else {}), "extra_body": extra}

    def _heard(
        self, answer: MessageResponse, body: Mapping[str, Any], ends: float, seconds: float
    ) -> Generator[str]:
        """Make the request, put the answer together, and yield its text as it arrives."""
        ask = cast("_Ask", self._client.messages.with_streaming_response.create)
        try:
            with ask(model=self.model, timeout=seconds, **body) as response:
                arriving = response.iter_bytes()
                pieces = body_pieces(arriving, self._endpoint, ends=ends, seconds=seconds)
                yield from self._read(answer, response, pieces)
            return
        except APITimeoutError:
            failure = timeout_error(self._endpoint, seconds)
        except APIStatusError as error:
            failure = redirect_of(self._endpoint, error.response) or self._refused(
                error.body, status=error.status_code, headers=error.response.headers
            )
        except (AnthropicError, httpx2.HTTPError, httpx2.StreamError, lenient.AnswerError) as error:
            failure = failure_of(self._endpoint, error, seconds)
        # not in the handlers: what it follows from would be in its context, and has the key
        raise failure

    def _read(
        self, answer: MessageResponse, response: APIResponse[Any], pieces: Iterable[bytes]
    ) -> Iterator[str]:
        # a server that does not stream answers as a whole
        if "text/event-stream" not in response.headers.get("content-type", ""):
            yield answer.add(self._whole(whole_body(pieces, self._endpoint)))
            return
        for data in event_data(pieces):
            event = lenient.json_object(data)
            if event is None:
                raise incomplete_response(self._endpoint, "it is not JSON", data)
            yield answer.add(self._checked(event))
            if event.get("type") == "message_stop":
                break
        if not answer.has_ended:
            raise incomplete_response(self._endpoint, "the stream ended before the answer did")

    def _whole(self, data: str) -> Mapping[str, Any]:
        message = lenient.json_object(data)
        if message is None:
            raise not_the_api(self._endpoint, "Messages", data)
        return {"type": "message", **self._checked(message)}

    def _checked(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what was sent, unless it is a failure that has no status of its own."""
        if said.get("type") == "error" or said.get("error"):
            raise self._refused(said)
        return said

    def _refused(
        self,
        body: object,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ProviderError:
        error = lenient.as_mapping(body).get("error", body)
        told = lenient.as_mapping(error)
        kind = lenient.as_text(told.get("type"))
        said = told.get("message") or error or ""
        return error_from_response(
            self._endpoint,
            said if isinstance(said, str) else lenient.json_text(said),
            status=_STATUS.get(kind) if status is None else status,
            code=kind,
            headers=headers,
            hints=_HINTS,
        )


class _Client(Anthropic):
    """The SDK's client, which is told by arguments what it would take from the environment.

    Because it is a class of its own it looks for no other credentials either.
    """

    def __init__(self, api_key: str | None, url: httpx2.URL, headers: Mapping[str, str]) -> None:
        # a span for each request is made by whoever asks
        super().__init__(
            api_key=api_key,
            base_url=bare_url(url),
            max_retries=0,
            open_telemetry=False,
            http_client=limit_client(DefaultHttpxClient(), url),
        )
        self.api_key = (self.api_key or "").strip()
        self.auth_token = None
        self._custom_headers = dict(headers)

    @property
    def user_agent(self) -> str:
        """What the SDK says that it is; it would take the name of this class."""
        return f"Anthropic/Python {self._version}"
