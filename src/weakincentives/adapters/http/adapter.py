"""HttpAdapter: the shared core of the adapters that use a provider's SDK over HTTP.

It checks the arguments, sends one request through the SDK, reads a bounded response (streamed or
whole) and translates every failure into a `ProviderError` that contains no secret. A subclass
encodes the request, decodes the response and names the SDK's errors.
"""

import re
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import httpx2

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.errors import AuthenticationError, InvalidRequestError, ProviderError
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.errors import (
    Endpoint,
    connection_error,
    error_from_response,
    incomplete_response,
    redirect_error,
    timeout_error,
    wrong_api_error,
)
from weakincentives.adapters.http.sse import event_data
from weakincentives.adapters.http.transport import LOCATION, BodyError, bare_url, request_time
from weakincentives.adapters.messages import Completion, CompletionRequest
from weakincentives.adapters.prices import TokenPrice, list_price
from weakincentives.redaction import header_secrets, redact_url

DEFAULT_TIMEOUT = 600.0
"""Seconds for a request without a timeout."""
_NO_KEY = "none"  # for servers without keys: the SDKs insist on one
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PUBLIC_PARAMETERS = frozenset({"api-version", "version"})


class _SdkResponse(Protocol):
    """A streamed response of an SDK."""

    @property
    def headers(self) -> Mapping[str, str]: ...
    def iter_bytes(self) -> Iterator[bytes]: ...


class _StatusError(Protocol):
    """An SDK's error for a response with an error status."""

    response: httpx2.Response
    status_code: int
    body: object


class _SdkClient(Protocol):
    """An SDK's client: it is configured by arguments and not by the environment.

    `send_request` is ours, and takes the arguments of the SDK's own method.
    """

    api_key: Any

    def __init__(
        self, api_key: str | None, url: httpx2.URL, headers: Mapping[str, str]
    ) -> None: ...
    def send_request(self, **arguments: Any) -> AbstractContextManager[_SdkResponse]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SdkErrors:
    """The exception classes of an SDK."""

    base: type[Exception]
    timeout: type[Exception]
    status: type[Exception]
    """Raised for an error status; its instances are `_StatusError`s."""


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The content of an error response: the provider's message and code."""

    message: object
    code: str = ""
    status: int | None = None
    """The status that the body implies, if the response has none."""


DecoderT = TypeVar("DecoderT", bound=lenient.ResponseDecoder)


class HttpAdapter(ProviderAdapter, Generic[DecoderT]):
    """Sends requests to one API of a provider, at its own URL or any other `base_url`.

    Args:
        model: The model's name.
        api_key: The key, or None to let the SDK take it from the environment.
        url: URL of the API.
        headers: Sent with every request.
        native_output: Whether the provider enforces structured output.
        pictures: Whether to send pictures; None sends them to the provider's own URL only.
    """

    _api: ClassVar[str]
    """Name of the API, for messages."""
    _default_url: ClassVar[str]
    """The provider's own URL."""
    _example_url: ClassVar[str]
    """A `base_url`, for messages."""
    _key_source: ClassVar[str]
    """Where the key comes from, for messages."""
    _client_type: ClassVar[type[_SdkClient]]
    """The SDK's client."""
    _decoder_type: type[DecoderT]
    """Decodes one response."""
    _sdk_errors: ClassVar[SdkErrors]
    _hints: tuple[tuple[str, str], ...]
    """Advice for rejected requests, each with a pattern that the provider's message starts with."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        url: str,
        headers: Mapping[str, str] | None,
        native_output: bool,
        pictures: bool | None,
    ) -> None:
        """Check the arguments and create the SDK's client.

        Raises:
            AuthenticationError: The key is missing or malformed.
            InvalidRequestError: The URL or a header is invalid.
        """
        self.model = model
        self.native_output = native_output
        parsed = check_url(url, provider=self.name, example=self._example_url)
        checked = _check_headers(headers, provider=self.name)
        self._is_third_party = parsed.host != httpx2.URL(self._default_url).host
        # another server has its own prices
        self.price: TokenPrice | None = (
            None if self._is_third_party else list_price(self.name, model)
        )
        self._pictures = not self._is_third_party if pictures is None else pictures
        self._client = self._client_type(api_key, parsed, checked)
        key: str = self._client.api_key or ""
        secrets = (*url_secrets(parsed), *header_secrets(checked))
        self._endpoint = Endpoint(
            self.name, model, str(bare_url(parsed)), self._key_source, key, secrets
        )
        if not key and self._is_third_party:
            key = self._client.api_key = _NO_KEY
        check_key(key, provider=self.name, source=self._key_source)

    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Send one request; the response is streamed if `on_text` is given."""
        try:
            return self._exchange(request, on_text, timeout)
        except ProviderError as error:
            failure = error
        # without its traceback: the variables of those frames hold what the server sent
        raise failure.with_traceback(None)

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    @abstractmethod
    def _encode_request(self, request: CompletionRequest, *, stream: bool) -> dict[str, Any]:
        """Return the arguments of the SDK's method, without model and timeout."""

    @abstractmethod
    def _decode_events(self, events: Iterable[str], decoder: DecoderT) -> Iterator[str]:
        """Decode the events of a stream up to its end, and yield the new text of each."""

    @abstractmethod
    def _find_error(self, chunk: Mapping[str, Any]) -> object:
        """Return the error in a chunk that came with a success status, or None."""

    @abstractmethod
    def _decode_error(self, body: object) -> ErrorBody:
        """Return the message and code of an error."""

    def _exchange(
        self,
        request: CompletionRequest,
        on_text: Callable[[str], None] | None,
        timeout: float | None,
    ) -> Completion:
        """Send a request and collect the response."""
        seconds = DEFAULT_TIMEOUT if timeout is None else timeout
        body = self._encode_request(request, stream=on_text is not None)
        decoder = self._decoder_type()
        with request_time(seconds, self._endpoint.all_secrets) as ends:
            texts = self._stream_text(decoder, body, ends, seconds)
            return lenient.collect_completion(decoder, texts, self._endpoint, on_text)

    def _stream_text(
        self, decoder: DecoderT, body: Mapping[str, Any], ends: float, seconds: float
    ) -> Generator[str]:
        """Send the request, feed the response to the decoder, and yield its text."""
        errors = self._sdk_errors
        try:
            with self._client.send_request(model=self.model, timeout=seconds, **body) as response:
                pieces = limit_pieces(
                    response.iter_bytes(), self._endpoint, ends=ends, seconds=seconds
                )
                yield from self._read_response(decoder, response, pieces)
            return
        except errors.timeout:
            failure = timeout_error(self._endpoint, seconds)
        except errors.status as error:
            failure = self._status_error(cast("_StatusError", error))
        except (errors.base, httpx2.HTTPError, httpx2.StreamError, lenient.ResponseError) as error:
            failure = self._client_error(error, seconds)
        # outside the handlers: the error's context would contain the request with the key
        raise failure

    def _read_response(
        self, decoder: DecoderT, response: _SdkResponse, pieces: Iterable[bytes]
    ) -> Iterator[str]:
        # some servers ignore `stream` and send the response as a whole
        if "text/event-stream" not in response.headers.get("content-type", ""):
            data = self._read_body(pieces)
            chunk = lenient.json_object(data)
            if chunk is None:
                raise wrong_api_error(self._endpoint, self._api, data)
            yield decoder.add_response(self._check_chunk(chunk))
            return
        yield from self._decode_events(event_data(pieces), decoder)
        if not decoder.has_ended:
            raise incomplete_response(self._endpoint, "the stream ended before the answer did")

    def _parse_event(self, data: str) -> Mapping[str, Any]:
        """Return the JSON object of an event; raise if it is not one, or an error."""
        chunk = lenient.json_object(data)
        if chunk is None:
            raise incomplete_response(self._endpoint, "it is not JSON", data)
        return self._check_chunk(chunk)

    def _check_chunk(self, chunk: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a chunk; raise if it is an error that came with a success status."""
        error = self._find_error(chunk)
        if error is not None:
            raise self._response_error(error)
        return chunk

    def _read_body(self, pieces: Iterable[bytes]) -> str:
        body = bytearray()
        for piece in pieces:
            body += piece
            if len(body) > lenient.MAX_BODY:
                reason = f"it is longer than {lenient.MAX_BODY} bytes"
                raise incomplete_response(self._endpoint, reason)
        return body.decode("utf-8", "replace")

    def _status_error(self, error: _StatusError) -> ProviderError:
        response = error.response
        location = response.extensions.get(LOCATION)
        if location is not None and response.is_redirect:
            return redirect_error(self._endpoint, response.status_code, str(location))
        return self._response_error(error.body, status=error.status_code, headers=response.headers)

    def _response_error(
        self, body: object, *, status: int | None = None, headers: Mapping[str, str] | None = None
    ) -> ProviderError:
        error = self._decode_error(body)
        message = error.message
        return error_from_response(
            self._endpoint,
            message if isinstance(message, str) else lenient.json_text(message),
            status=error.status if status is None else status,
            code=error.code,
            headers=headers,
            hints=self._hints,
        )

    def _client_error(self, error: Exception, seconds: float) -> ProviderError:
        """Return the error for an exception of the HTTP client or the decoder."""
        cause = error.__cause__ or error
        match error:
            case BodyError() | lenient.ResponseError():
                return incomplete_response(self._endpoint, str(error))
            case httpx2.TimeoutException():
                return timeout_error(self._endpoint, seconds)
            case _:
                return connection_error(self._endpoint, f"{type(cause).__name__}: {cause}")


def check_url(url: str, *, provider: str, example: str) -> httpx2.URL:
    """Parse the URL of an API.

    Raises:
        InvalidRequestError: It is not an HTTP URL.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidRequestError(
            f"base_url must be a URL such as {example}: {redact_url(url)!r}", provider=provider
        )
    return parsed


def check_key(key: str, *, provider: str, source: str) -> None:
    """Check that a key is present and well-formed.

    Args:
        key: The key.
        provider: The provider, for the message.
        source: Where the key comes from, for the message.

    Raises:
        AuthenticationError: It is missing or malformed.
    """
    if not key:
        raise AuthenticationError(f"No key for {provider}, set {source}", provider=provider)
    if not (key.isascii() and key.isprintable()):
        raise AuthenticationError(
            f"The key for {provider} contains invalid characters, check {source}", provider=provider
        )


def url_secrets(url: httpx2.URL) -> Iterator[str]:
    """Yield the secrets in a URL: user, password and query values."""
    yield from (url.username, url.password, f"{url.username}:{url.password}")
    for name, value in url.params.multi_items():
        if name.lower() not in _PUBLIC_PARAMETERS:
            yield value or name  # `?TOKEN` is a name without a value


def limit_pieces(
    pieces: Iterable[bytes], endpoint: Endpoint, *, ends: float, seconds: float
) -> Iterator[bytes]:
    """Yield a response body within its limits: a client's timeout is for each piece only.

    Args:
        pieces: The body as it arrives.
        endpoint: Where it comes from.
        ends: When the timeout expires, by `time.monotonic`.
        seconds: The timeout, for the message.

    Raises:
        TransientError: It takes too long, or is too large.
    """
    left = lenient.MAX_STREAM
    for piece in pieces:
        if time.monotonic() > ends:
            raise timeout_error(endpoint, seconds)
        left -= len(piece)
        if left < 0:
            raise incomplete_response(endpoint, f"it is longer than {lenient.MAX_STREAM} bytes")
        yield piece


def _check_headers(headers: Mapping[str, str] | None, *, provider: str) -> dict[str, str]:
    """Return the headers with stripped values.

    Raises:
        InvalidRequestError: A name or a value contains invalid characters.
    """
    checked = {name: value.strip() for name, value in (headers or {}).items()}
    for name, value in checked.items():
        if not (_HEADER_NAME.fullmatch(name) and value.isascii() and value.isprintable()):
            raise InvalidRequestError(
                f"Header {name!r} is invalid, use ASCII characters without line breaks",
                provider=provider,
            )
    return checked
