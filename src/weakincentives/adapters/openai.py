"""OpenAI and whatever speaks its Chat Completions API: local servers, routers, other providers.

Needs the extra `openai`. The SDK's own retries are off: a run has its own. Of the environment
only `OPENAI_API_KEY` is read, and only where no key is given; proxies and certificates are
those of the machine.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from typing import Any, TypeAlias, cast

try:
    import httpx2
    from openai import (
        APIResponse,
        APIStatusError,
        APITimeoutError,
        DefaultHttpxClient,
        OpenAI,
        OpenAIError,
    )
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "Models of openai need an extra: pip install 'weakincentives[openai]'", name=_error.name
    ) from _error

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.chat.request import MaxTokensField, build_chat_request
from weakincentives.adapters.chat.response import ChatResponse
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

__all__ = ["MaxTokensField", "OpenAIAdapter"]
_Ask: TypeAlias = Callable[..., AbstractContextManager[APIResponse[Any]]]
_URL = "https://api.openai.com/v1"
_KEY = "OPENAI_API_KEY or api_key"
# what servers refuse, and the argument of the adapter that leaves it out
_UNKNOWN = "(?=.*(not support|unsupported|recogni[sz]|unknown|not permitted|unexpected))"
_HINTS = (
    (f"{_UNKNOWN}(?=.*stream_options)", "give stream_usage=False"),
    (f"{_UNKNOWN}(?=.*(response_format|json_schema|grammar))", "give native_output=False"),
    ("(?=.*grammar)(?=.*tools)", "give native_output=False"),
    ("(?=.*not support tools)", "take a model that can call tools"),
)
_MAX_TOKENS = f"{_UNKNOWN}(?=.*max_(completion_)?tokens)"
_OTHER_FIELD: Mapping[MaxTokensField, MaxTokensField] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}


class OpenAIAdapter(ProviderAdapter):
    """Asks a model by the Chat Completions API, at OpenAI or at any other `base_url`."""

    name = "openai"

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
        """Ask `model`.

        Args:
            model: Its name, as the server calls it.
            api_key: None is what the environment has as `OPENAI_API_KEY`. A server of your own
                may do without.
            base_url: Where the API is, as `http://localhost:8080/v1`; None is OpenAI.
            headers: Sent with every request: what a router, an organization or a project needs.
            native_output: Have the server see to structured output, by `json_schema`. For
                servers that cannot, False has the schema told to the model in words.
            stream_usage: Ask for the tokens that a streamed answer cost; some servers refuse.
            max_tokens_field: What the server calls the longest answer; None is
                `max_completion_tokens` at OpenAI, and `max_tokens` elsewhere.
            pictures: Show the model the pictures that tools return; None does at OpenAI only, since
                a server whose model cannot see refuses the whole conversation.

        Raises:
            AuthenticationError: There is no key, or it cannot be one.
            InvalidRequestError: `base_url` is no URL, or a header cannot be sent.
        """
        self.model = model
        self.native_output = native_output
        self._stream_usage = stream_usage
        url = checked_url(
            _URL if base_url is None else base_url,
            provider=self.name,
            example="http://localhost:8080/v1",
        )
        self._is_elsewhere = url.host != httpx2.URL(_URL).host
        self._max_tokens_field: MaxTokensField = max_tokens_field or (
            "max_tokens" if self._is_elsewhere else "max_completion_tokens"
        )
        self._pictures = not self._is_elsewhere if pictures is None else pictures
        sent = checked_headers(headers, provider=self.name)
        self._client = _Client(api_key, url, sent)
        self._endpoint = Endpoint(
            self.name, model, shown_url(url), _KEY, self._client.api_key, secrets_of(url, sent)
        )
        if not self._client.api_key and self._is_elsewhere:
            self._client.api_key = NO_KEY
        check_key(self._client.api_key, provider=self.name, where=_KEY)

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
        body = build_chat_request(
            request,
            max_tokens_field=self._max_tokens_field,
            native_output=self.native_output,
            with_extras=self._is_elsewhere,
            with_pictures=self._pictures,
        )
        if on_text is not None:
            body["stream"] = True
            if self._stream_usage:
                body["stream_options"] = {"include_usage": True}
        answer = ChatResponse()
        seconds = DEFAULT_TIMEOUT if timeout is None else timeout
        with (
            request_time(seconds, self._endpoint.all_secrets) as ends,
            closing(self._heard(answer, body, ends, seconds)) as texts,
        ):
            for text in lenient.whole_characters(texts):
                if on_text is not None:
                    on_text(text)
        if not answer.has_choice:
            raise incomplete_response(self._endpoint, "there are no choices in it")
        return answer.completion()

    def _heard(
        self, answer: ChatResponse, body: Mapping[str, Any], ends: float, seconds: float
    ) -> Generator[str]:
        """Make the request, put the answer together, and yield its text as it arrives."""
        ask = cast("_Ask", self._client.chat.completions.with_streaming_response.create)
        try:
            with ask(model=self.model, timeout=seconds, **body) as response:
                pieces = body_pieces(
                    response.iter_bytes(), self._endpoint, ends=ends, seconds=seconds
                )
                yield from self._read(answer, response, pieces)
            return
        except APITimeoutError:
            failure = timeout_error(self._endpoint, seconds)
        except APIStatusError as error:
            failure = redirect_of(self._endpoint, error.response) or self._refused(
                error.body, status=error.status_code, headers=error.response.headers
            )
        except (OpenAIError, httpx2.HTTPError, httpx2.StreamError, lenient.AnswerError) as error:
            failure = failure_of(self._endpoint, error, seconds)
        # not in the handlers: what it follows from would be in its context, and has the key
        raise failure

    def _read(
        self, answer: ChatResponse, response: APIResponse[Any], pieces: Iterable[bytes]
    ) -> Iterator[str]:
        # a server that does not stream answers as a whole
        if "text/event-stream" not in response.headers.get("content-type", ""):
            yield answer.add(self._whole(whole_body(pieces, self._endpoint)))
            return
        for data in event_data(pieces):
            if data.startswith("[DONE]"):
                answer.has_ended = True
                break
            chunk = lenient.json_object(data)
            if chunk is None:
                raise incomplete_response(self._endpoint, "it is not JSON", data)
            yield answer.add(self._checked(chunk))
        if not answer.has_ended:
            raise incomplete_response(self._endpoint, "the stream ended before the answer did")

    def _whole(self, data: str) -> Mapping[str, Any]:
        chunk = lenient.json_object(data)
        if chunk is None:
            raise not_the_api(self._endpoint, "Chat Completions", data)
        return self._checked(chunk)

    def _checked(self, chunk: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what was sent, unless it is a failure that has no status of its own."""
        if chunk.get("error"):
            raise self._refused(chunk["error"])
        return chunk

    def _refused(
        self,
        body: object,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ProviderError:
        told = lenient.as_mapping(body)
        said = told.get("message") or told.get("detail") or body or ""
        code = told.get("code")
        if status is None and isinstance(code, int) and 400 <= code < 600:
            status = code
        other = _OTHER_FIELD[self._max_tokens_field]
        return error_from_response(
            self._endpoint,
            said if isinstance(said, str) else lenient.json_text(said),
            status=status,
            code=f"{code} {told.get('type')}",
            headers=headers,
            hints=(*_HINTS, (_MAX_TOKENS, f"give max_tokens_field={other!r}")),
        )


class _Client(OpenAI):
    """The SDK's client, which is told by arguments what it would take from the environment."""

    def __init__(self, api_key: str | None, url: httpx2.URL, headers: Mapping[str, str]) -> None:
        # an admin key of "" keeps the SDK from taking another, and from asking for one
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
        """What the SDK says that it is; it would take the name of this class."""
        return f"OpenAI/Python {self._version}"
