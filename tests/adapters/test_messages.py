"""ProviderAdapter needs one method, and its errors say who must act."""

import pytest

from weakincentives.adapters import (
    AdapterError,
    AssistantMessage,
    AuthenticationError,
    Completion,
    CompletionRequest,
    ContextTooLongError,
    InvalidRequestError,
    ProviderAdapter,
    ProviderError,
    SystemMessage,
    ThrottledError,
    ToolMessage,
    TransientError,
    UserMessage,
)
from weakincentives.errors import WinkError
from weakincentives.serde import to_builtins


def test_an_adapter_is_one_method():
    class Half(ProviderAdapter):
        pass

    class Whole(ProviderAdapter):
        def complete(self, request: CompletionRequest, *, on_text=None, timeout=None) -> Completion:
            return Completion("yes")

    with pytest.raises(TypeError, match="complete"):
        Half()  # pyright: ignore[reportAbstractUsage]  # that is what is tested
    assert Whole().complete(CompletionRequest((UserMessage("?"),))).text == "yes"


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        (ThrottledError, True),
        (TransientError, True),
        (InvalidRequestError, False),
        (AuthenticationError, False),
        (ContextTooLongError, False),
    ],
)
def test_an_error_of_a_provider_says_whether_it_is_retryable(
    kind: type[ProviderError], retryable: bool
):
    error = kind("no", provider="openai", status=429, retry_after=2.5)
    assert isinstance(error, AdapterError)
    assert isinstance(error, WinkError)
    assert isinstance(error, RuntimeError)
    assert (error.retryable, error.provider, error.status) == (retryable, "openai", 429)
    assert (error.retry_after, str(error)) == (2.5, "no")


def test_every_message_says_whose_it_is():
    messages = (
        SystemMessage("s"),
        UserMessage("u"),
        AssistantMessage("a"),
        ToolMessage("1", "t", ""),
    )
    assert [each.role for each in messages] == ["system", "user", "assistant", "tool"]
    assert to_builtins(messages[1]) == {"text": "u", "media": (), "role": "user"}
