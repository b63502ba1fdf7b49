"""Claude at Anthropic, and servers that speak its Messages API.

Needs the extra `anthropic`. The SDK's own retries are off, because a run has its own. From the
environment it takes only `ANTHROPIC_API_KEY`, if no key is given; proxies and certificates are
those of the machine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, cast

from weakincentives.extras import needs_extra

with needs_extra("anthropic models", "anthropic"):
    import httpx2
    from anthropic import (
        Anthropic,
        AnthropicError,
        APIResponse,
        APIStatusError,
        APITimeoutError,
        DefaultHttpxClient,
    )

from weakincentives.adapters.anthropic.messages import MessageResponse, build_message_request
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.adapter import ErrorBody, HttpAdapter, SdkErrors
from weakincentives.adapters.http.transport import bare_url, limit_client
from weakincentives.adapters.messages import CompletionRequest
from weakincentives.adapters.options import Effort

_Create: TypeAlias = Callable[..., AbstractContextManager[APIResponse[Any]]]
_URL = "https://api.anthropic.com"
_MAX_TOKENS = 32_000  # every model that is still served supports this
# an error in the middle of a stream has a type, but no status
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


class _AnthropicClient(Anthropic):
    """The SDK's client, configured by arguments and not by the environment.

    As a subclass it also skips the SDK's search for other credentials.
    """

    def __init__(self, api_key: str | None, url: httpx2.URL, headers: Mapping[str, str]) -> None:
        # the run creates the spans of requests
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
        """The SDK's own user agent; it would contain the name of this class."""
        return f"Anthropic/Python {self._version}"

    def send_request(self, **arguments: Any) -> AbstractContextManager[APIResponse[Any]]:
        """Send a Messages request."""
        create = cast("_Create", self.messages.with_streaming_response.create)
        return create(**arguments)


class AnthropicAdapter(HttpAdapter[MessageResponse]):
    """Sends requests to the Messages API, at Anthropic or any other `base_url`.

    Args:
        model: The model's name on the server.
        api_key: None takes `ANTHROPIC_API_KEY` from the environment. Other servers may need
            none.
        base_url: URL of the API, such as `http://localhost:8080`, with or without `/v1`; None
            is Anthropic.
        headers: Sent with every request, for a router or a beta feature.
        extra_body: Sent with every request: `thinking`, an `output_config` with the effort,
            and anything else that the API accepts.
        max_tokens: Token limit of an answer, reasoning included, if `RunOptions` has none.
        native_output: Let the API enforce structured output. False, for models and servers
            that cannot, describes the schema in the prompt.
        native_tools: Send text editor and bash tools, if they have the API's names and
            parameters, as the API's own tool types; their descriptions are then in the
            system prompt.
        cache: Mark what the next step sends again for the API's cache, in requests with tools.
        pictures: Send the pictures that tools return; None sends them to Anthropic only,
            because servers whose model has no vision reject the whole conversation.
    """

    name = "anthropic"
    efforts: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")
    _api = "Messages"
    _default_url = _URL
    _example_url = "http://localhost:8080"
    _key_source = "ANTHROPIC_API_KEY or api_key"
    _client_type = _AnthropicClient
    _decoder_type = MessageResponse
    _sdk_errors = SdkErrors(AnthropicError, APITimeoutError, APIStatusError)
    # what models and servers reject, and the argument that omits it
    _hints = (
        (".*max_tokens.*(maximum|limit)", "pass a smaller max_tokens"),
        (".*(text_editor_|bash_)[0-9]", "pass native_tools=False"),
        (".*effort", "omit the effort, or choose another"),
        (".*(output_config|output_format|structured output)", "pass native_output=False"),
        (".*cache_control", "pass cache=False"),
        (".*temperature", "omit the temperature"),
    )

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
        """Create an adapter for `model`.

        Raises:
            AuthenticationError: The key is missing or malformed.
            InvalidRequestError: `base_url` is not a URL, or a header is invalid.
            ValueError: `max_tokens` is not more than 0.
        """
        if max_tokens <= 0:
            raise ValueError(f"max_tokens must be more than 0: {max_tokens!r}")
        super().__init__(
            model,
            api_key=api_key,
            # the SDK adds the version to the path, and other SDKs expect it in the URL
            url=_URL if base_url is None else base_url.rstrip("/").removesuffix("/v1"),
            headers=headers,
            native_output=native_output,
            pictures=pictures,
        )
        self._native_tools = native_tools
        self._cache = cache
        self._max_tokens = max_tokens
        self._extra_body = dict(extra_body or {})

    def _encode_request(self, request: CompletionRequest, *, stream: bool) -> dict[str, Any]:
        body = build_message_request(
            request,
            max_tokens=self._max_tokens,
            native_output=self.native_output,
            native_tools=self._native_tools,
            cache=self._cache,
            with_pictures=self._pictures,
        )
        arguments = {name: body.pop(name) for name in ("max_tokens", "messages")}
        # the SDK's method has no argument for the rest
        extra = {**body, **self._extra_body}
        if "output_config" in body:
            config = lenient.as_mapping(self._extra_body.get("output_config"))
            extra["output_config"] = {**config, **body["output_config"]}
        return {**arguments, **({"stream": True} if stream else {}), "extra_body": extra}

    def _decode_events(self, events: Iterable[str], decoder: MessageResponse) -> Iterator[str]:
        for data in events:
            event = self._parse_event(data)
            yield decoder.add(event)
            if event.get("type") == "message_stop":
                return

    def _find_error(self, chunk: Mapping[str, Any]) -> object:
        return chunk if chunk.get("type") == "error" or chunk.get("error") else None

    def _decode_error(self, body: object) -> ErrorBody:
        error = lenient.as_mapping(body).get("error", body)
        fields = lenient.as_mapping(error)
        kind = lenient.as_text(fields.get("type"))
        message = fields.get("message") or error or ""
        return ErrorBody(message, code=kind, status=_STATUS.get(kind))
