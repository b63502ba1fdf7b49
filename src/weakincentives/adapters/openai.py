"""OpenAI, and servers that speak its Chat Completions API: local servers, routers, other providers.

Needs the extra `openai`. The SDK's own retries are off, because a run has its own. From the
environment it takes only `OPENAI_API_KEY`, if no key is given; proxies and certificates are those
of the machine. `chat_completions` has the encoding of requests and the decoding of responses.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, cast

from weakincentives.extras import needs_extra

with needs_extra("openai models", "openai"):
    import httpx2
    from openai import (
        APIResponse,
        APIStatusError,
        APITimeoutError,
        DefaultHttpxClient,
        OpenAI,
        OpenAIError,
    )

from weakincentives.adapters.chat_completions import (
    ChatResponse,
    MaxTokensField,
    build_chat_request,
)
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.adapter import ErrorBody, HttpAdapter, SdkErrors
from weakincentives.adapters.http.transport import bare_url, limit_client
from weakincentives.adapters.messages import CompletionRequest

__all__ = ["MaxTokensField", "OpenAIAdapter"]
_Create: TypeAlias = Callable[..., AbstractContextManager[APIResponse[Any]]]
_URL = "https://api.openai.com/v1"
# what servers reject, and the argument of the adapter that omits it
_UNKNOWN = "(?=.*(not support|unsupported|recogni[sz]|unknown|not permitted|unexpected))"
_HINTS = (
    (f"{_UNKNOWN}(?=.*stream_options)", "pass stream_usage=False"),
    (f"{_UNKNOWN}(?=.*(response_format|json_schema|grammar))", "pass native_output=False"),
    (f"{_UNKNOWN}(?=.*(reasoning_)?effort)", "omit the effort, or choose another"),
    (f"{_UNKNOWN}(?=.*temperature)", "omit the temperature"),
    ("(?=.*grammar)(?=.*tools)", "pass native_output=False"),
    ("(?=.*not support tools)", "use a model that can call tools"),
)
_MAX_TOKENS = f"{_UNKNOWN}(?=.*max_(completion_)?tokens)"
_OTHER_FIELD: Mapping[MaxTokensField, MaxTokensField] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}


class _OpenAIClient(OpenAI):
    """The SDK's client, configured by arguments and not by the environment."""

    def __init__(self, api_key: str | None, url: httpx2.URL, headers: Mapping[str, str]) -> None:
        # an empty admin key keeps the SDK from reading or demanding one
        super().__init__(
            api_key=api_key,
            admin_api_key="",
            base_url=bare_url(url),
            max_retries=0,
            http_client=limit_client(DefaultHttpxClient(), url),
        )
        self.api_key = self.api_key.strip()
        self.organization = None
        self.project = None
        self._custom_headers = dict(headers)

    @property
    def user_agent(self) -> str:
        """The SDK's own user agent; it would contain the name of this class."""
        return f"OpenAI/Python {self._version}"

    def send_request(self, **arguments: Any) -> AbstractContextManager[APIResponse[Any]]:
        """Send a Chat Completions request."""
        create = cast("_Create", self.chat.completions.with_streaming_response.create)
        return create(**arguments)


class OpenAIAdapter(HttpAdapter[ChatResponse]):
    """Sends requests to the Chat Completions API, at OpenAI or any other `base_url`.

    Args:
        model: The model's name on the server.
        api_key: None takes `OPENAI_API_KEY` from the environment. Other servers may need none.
        base_url: URL of the API, such as `http://localhost:8080/v1`; None is OpenAI.
        headers: Sent with every request, for a router, an organization or a project.
        native_output: Let the server enforce structured output by `json_schema`. False, for
            servers that cannot, describes the schema in the prompt.
        stream_usage: Request the token usage of streamed responses; some servers reject this.
        max_tokens_field: The server's name for the token limit of an answer; None is
            `max_completion_tokens` at OpenAI and `max_tokens` elsewhere.
        pictures: Send the pictures that tools return; None sends them to OpenAI only, because
            servers whose model has no vision reject the whole conversation.
    """

    name = "openai"
    _api = "Chat Completions"
    _default_url = _URL
    _example_url = "http://localhost:8080/v1"
    _key_source = "OPENAI_API_KEY or api_key"
    _client_type = _OpenAIClient
    _decoder_type = ChatResponse
    _sdk_errors = SdkErrors(OpenAIError, APITimeoutError, APIStatusError)

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        native_output: bool = True,
        stream_usage: bool = True,
        max_tokens_field: MaxTokensField | None = None,
        pictures: bool | None = None,
    ) -> None:
        """Create an adapter for `model`.

        Raises:
            AuthenticationError: The key is missing or malformed.
            InvalidRequestError: `base_url` is not a URL, or a header is invalid.
        """
        super().__init__(
            model,
            api_key=api_key,
            url=_URL if base_url is None else base_url,
            headers=headers,
            native_output=native_output,
            pictures=pictures,
        )
        self._stream_usage = stream_usage
        self._max_tokens_field: MaxTokensField = max_tokens_field or (
            "max_tokens" if self._is_third_party else "max_completion_tokens"
        )
        other = _OTHER_FIELD[self._max_tokens_field]
        self._hints = (*_HINTS, (_MAX_TOKENS, f"pass max_tokens_field={other!r}"))

    def _encode_request(self, request: CompletionRequest, *, stream: bool) -> dict[str, Any]:
        body = build_chat_request(
            request,
            max_tokens_field=self._max_tokens_field,
            native_output=self.native_output,
            with_extras=self._is_third_party,
            with_pictures=self._pictures,
        )
        if stream:
            body["stream"] = True
            if self._stream_usage:
                body["stream_options"] = {"include_usage": True}
        return body

    def _decode_events(self, events: Iterable[str], decoder: ChatResponse) -> Iterator[str]:
        for data in events:
            if data.startswith("[DONE]"):
                decoder.has_ended = True
                return
            yield decoder.add(self._parse_event(data))

    def _find_error(self, chunk: Mapping[str, Any]) -> object:
        return chunk.get("error") or None

    def _decode_error(self, body: object) -> ErrorBody:
        error = lenient.as_mapping(body)
        code = error.get("code")
        return ErrorBody(
            error.get("message") or error.get("detail") or body or "",
            code=f"{code} {error.get('type')}",
            status=code if isinstance(code, int) and 400 <= code < 600 else None,
        )
