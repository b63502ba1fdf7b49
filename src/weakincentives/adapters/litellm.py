"""Models of many providers by LiteLLM, which speaks to each in its own words.

Needs the extra `litellm`, which does not go together with the extra `openai`. Its retries are
off: a run has its own. Which keys and URLs it takes from the environment where none are given
is LiteLLM's to decide; it looks nothing up in the network, and reads no `.env` file.
"""

import os
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from weakincentives.adapters import wire
from weakincentives.adapters.bounds import Bounds
from weakincentives.adapters.cancellation import CancellationToken
from weakincentives.adapters.chat_answer import ChatAnswer
from weakincentives.adapters.chat_request import chat_body
from weakincentives.adapters.conversation import Completion, CompletionRequest
from weakincentives.adapters.core import ProviderAdapter
from weakincentives.adapters.failures import (
    Endpoint,
    broken_off,
    refusal,
    too_slow,
    unreachable,
)
from weakincentives.adapters.litellm_session import Limits, current_limits, limit_client
from weakincentives.adapters.problems import ProviderError
from weakincentives.adapters.redaction import header_secrets, redact, redact_url
from weakincentives.adapters.watching import NoAnswerError, Watched

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
        body = chat_body(
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
        watched = Watched(lambda told: self._answer(body, seconds, told), on_text)
        try:
            return watched.result(seconds, Bounds(CancellationToken()))
        except NoAnswerError as error:
            raise too_slow(self._endpoint, seconds) from error

    def _answer(
        self, body: Mapping[str, Any], seconds: float, on_text: Callable[[str], None] | None
    ) -> Completion:
        answer = ChatAnswer()
        with closing(self._heard(answer, body, seconds)) as texts:
            for text in wire.whole_characters(texts):
                if on_text is not None:
                    on_text(text)
        if not answer.has_choice:
            raise broken_off(self._endpoint, "there are no choices in it")
        return answer.completion()

    def _heard(self, answer: ChatAnswer, body: Mapping[str, Any], seconds: float) -> Generator[str]:
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
                    raise too_slow(self._endpoint, seconds)
                yield answer.add(wire.mapping(chunk.model_dump()))
            # for a stream that is cut off LiteLLM makes up a reason to stop
            if streams and not (said.received_finish_reason or said.intermittent_finish_reason):
                raise broken_off(self._endpoint, "the stream ended before the answer did")
            return
        except openai.APITimeoutError:
            failure = limits.failure or too_slow(self._endpoint, seconds)
        except openai.OpenAIError as error:
            failure = limits.failure or self._failure(error)
        except wire.AnswerError as error:
            failure = broken_off(self._endpoint, str(error))
        # not in the handlers: what it follows from would be in its context, and has the key
        raise failure

    def _failure(self, error: openai.OpenAIError) -> ProviderError:
        said = wire.text(getattr(error, "message", None)) or str(error)
        said = redact(said, _environment_secrets(), most=_SAID)
        if isinstance(error, openai.APIConnectionError):
            return unreachable(self._endpoint, said)
        status = getattr(error, "status_code", None)
        return refusal(
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
