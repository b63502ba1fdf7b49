from functools import partial
from typing import Any

import pytest

from tests.adapters.chat_server import (
    fails,
    piece,
    reply,
    streams,
)
from tests.adapters.http.providers import OPENAI, provider_error
from weakincentives.adapters import (
    AuthenticationError,
    ContextTooLongError,
    ProviderError,
    ThrottledError,
    TransientError,
)

pytestmark = pytest.mark.usefixtures("clean_environment")

error_of = partial(provider_error, OPENAI)


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (400, "context_length_exceeded", "too long", ContextTooLongError),
        (400, None, "This model's maximum context length is 8192 tokens", ContextTooLongError),
        (400, None, "the request exceeds the available context size", ContextTooLongError),
        (429, "rate_limit_exceeded", "Request too large for gpt-test", ContextTooLongError),
        (429, "insufficient_quota", "You exceeded your current quota", AuthenticationError),
        (503, None, "The server is overloaded", ThrottledError),
    ],
)
def test_what_is_said_tells_more_than_the_status(
    status: int, code: str | None, message: str, kind: type[ProviderError]
):
    assert type(error_of(fails(status, message, code=code))) is kind


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("'max_tokens' is not supported. Use 'max_completion_tokens'", "='max_completion_tokens'"),
        ("Unknown field: stream_options", "stream_usage=False"),
        ("'response_format' of type 'json_schema' is not supported", "native_output=False"),
        ("Cannot use custom grammar constraints with tools.", "native_output=False"),
        ("llama does not support tools", "use a model"),
        ("max_tokens is too large: 9. This model supports at most 8", "8'"),
    ],
)
def test_a_feature_that_a_server_lacks_is_named_with_the_option_that_leaves_it_out(
    message: str, hint: str
):
    assert str(error_of(fails(400, message))).endswith((hint, hint + " that can call tools"))


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ({"message": "slow down", "code": 429}, ThrottledError),
        ({"message": "no", "code": 401}, AuthenticationError),
        ({"message": "The engine is overloaded", "type": "server_error"}, ThrottledError),
        ({"message": "too long", "code": "context_length_exceeded"}, ContextTooLongError),
        ({"message": "The server had an error", "type": "server_error"}, TransientError),
        ("just text", TransientError),
    ],
)
def test_a_failure_without_a_status_of_its_own_is_understood(
    failure: Any, kind: type[ProviderError]
):
    assert type(error_of(reply({"error": failure}))) is kind
    late = streams(piece({"content": "a"}), {"error": failure})
    assert type(error_of(late, stream=True)) is kind
