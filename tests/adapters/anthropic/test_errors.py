from functools import partial

import pytest

from tests.adapters.anthropic.server import (
    events,
    fails,
    failure,
    pieces,
    text,
)
from tests.adapters.chat_server import reply
from tests.adapters.http.providers import ANTHROPIC, provider_error
from weakincentives.adapters import (
    AuthenticationError,
    ContextTooLongError,
    InvalidRequestError,
    ProviderError,
    ThrottledError,
    TransientError,
)

pytestmark = pytest.mark.usefixtures("clean_environment")

error_of = partial(provider_error, ANTHROPIC)

BEGUN = pieces(text("Hello"))[:4]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", ContextTooLongError),
        (
            "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000",
            ContextTooLongError,
        ),
        ("Your credit balance is too low to access the API", AuthenticationError),
    ],
)
def test_what_is_said_tells_more_than_the_status(message: str, kind: type[ProviderError]):
    assert type(error_of(fails(400, message))) is kind


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("max_tokens: 32000 > 8192, which is the maximum allowed", "a smaller max_tokens"),
        ("does not support tool types: text_editor_20250728", "native_tools=False"),
        ("tools.1: unknown type bash_20250124", "native_tools=False"),
        ("output_config.format: Extra inputs are not permitted", "native_output=False"),
        ("tools.0.cache_control: Extra inputs are not permitted", "cache=False"),
        ("temperature: Extra inputs are not permitted", "omit the temperature"),
    ],
)
def test_a_feature_that_is_refused_is_named_with_what_leaves_it_out(message: str, hint: str):
    assert str(error_of(fails(400, message))).endswith(hint)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", ThrottledError),
        ("rate_limit_error", ThrottledError),
        ("api_error", TransientError),
        ("timeout_error", TransientError),
        ("authentication_error", AuthenticationError),
        ("invalid_request_error", InvalidRequestError),
        ("something_new", TransientError),
    ],
)
def test_a_failure_in_the_middle_of_an_answer_is_understood(kind: str, error: type[ProviderError]):
    late = events(*BEGUN, failure(kind, "sorry"))
    found = error_of(late, stream=True)
    assert type(found) is error
    assert "sorry" in str(found)
    assert type(error_of(reply(failure(kind, "sorry")))) is error
