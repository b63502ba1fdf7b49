"""Session events and an in-process publish/subscribe event bus.

Filesystem events are published on the same bus, once their transaction has committed.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID, uuid4

from weakincentives.runtime.budget import TokenUsage

E = TypeVar("E")

Handler: TypeAlias = Callable[[E], object]
"""A function that is called with an event; its return value is ignored."""

_log = logging.getLogger(__name__)
_now = partial(datetime.now, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """How the command of a tool call ended: the call succeeds even if the command fails."""

    exit_code: int | None = None
    """None while it runs in the background."""
    signal: str | None = None
    """The name of the signal that killed it, if any."""
    timed_out: bool = False
    truncated: bool = False
    """Whether it printed more than the model got."""
    tail: str = ""
    """The last lines that a failed command printed, and the last one of any other."""
    styled: str = ""
    """What it printed, with the escape sequences for colours, if there were any."""

    @property
    def is_running(self) -> bool:
        """Whether it runs in the background."""
        return self.exit_code is None

    @property
    def failed(self) -> bool:
        """Whether it has ended with another exit code than 0."""
        return self.exit_code not in (None, 0)

    def __str__(self) -> str:
        """Return how it ended, such as `failed (exit 1)`."""
        if self.is_running:
            return "runs in the background"
        code = f"exit {self.exit_code}"
        if self.timed_out:
            return f"timed out ({code})"
        if self.signal:
            return f"killed by {self.signal} ({code})"
        return f"failed ({code})" if self.failed else code


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """A tool call begins; `ToolInvoked` with the same `call_id` follows when it has ended."""

    tool: str
    call_id: str = ""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The arguments, as JSON values."""
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvoked:
    """A tool call has finished: committed or rolled back."""

    tool: str
    call_id: str = ""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The arguments, as JSON values."""
    success: bool = True
    result_message: str = ""
    result_size: int | None = None
    """The number of characters sent to the model."""
    error: str | None = None
    duration_ms: float = 0.0
    paths: tuple[str, ...] = ()
    """The paths that the call accessed."""
    mode: str | None = None
    """The write mode, if a file was written."""
    snapshot_ref: str | None = None
    """The snapshot taken before the call, if there was one."""
    command: CommandOutcome | None = None
    """How its command ended, if it ran one."""
    usage: TokenUsage | None = None
    prompt_name: str | None = None
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=_now)

    @property
    def path(self) -> str | None:
        """The first path that the call accessed."""
        return self.paths[0] if self.paths else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRendered:
    """A prompt was rendered, to be sent to a model."""

    prompt_ns: str
    prompt_key: str
    prompt_name: str | None = None
    text: str = ""
    tools: tuple[str, ...] = ()
    adapter: str | None = None
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExecuted:
    """The work on a prompt has finished or failed."""

    prompt_ns: str
    prompt_key: str
    prompt_name: str | None = None
    adapter: str | None = None
    model: str | None = None
    success: bool = True
    text: str | None = None
    """The last message of the model."""
    error: str | None = None
    usage: TokenUsage | None = None
    tool_calls: int = 0
    duration_ms: float = 0.0
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True)
class ConversationStarted:
    """A run begins with these messages; no slice keeps this event."""

    messages: tuple[Any, ...]
    session_id: UUID


@dataclass(frozen=True, slots=True)
class MessageAdded:
    """A message was added to the conversation of a run; no slice keeps this event."""

    message: Any
    session_id: UUID


@dataclass(frozen=True, slots=True)
class SessionReset:
    """A session was reset; state that is derived from it should be reset too."""

    session_id: UUID


@dataclass(frozen=True, slots=True)
class HandlerFailure:
    """A handler that raised, and its error."""

    handler: Handler[Any]
    error: Exception

    def __str__(self) -> str:
        """Return the handler and its error."""
        return f"{_name(self.handler)} failed: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The result of publishing an event: the handlers invoked and their errors."""

    event: object
    handlers_invoked: tuple[Handler[Any], ...] = ()
    errors: tuple[HandlerFailure, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no handler failed."""
        return not self.errors


class EventBus(Protocol):
    """Delivers events to the handlers that subscribed to their type."""

    def subscribe(self, event_type: type[E], handler: Handler[E]) -> Callable[[], None]:
        """Call `handler` with every `event_type` from now on; return a function to unsubscribe."""
        ...

    def unsubscribe(self, event_type: type[E], handler: Handler[E]) -> bool:
        """Remove the oldest such subscription; return whether there was one."""
        ...

    def publish(self, event: object) -> PublishResult:
        """Call every handler subscribed to the type of `event` or a base of it."""
        ...


@dataclass(slots=True, eq=False)
class _Subscription:
    event_type: type[Any]
    handler: Handler[Any]
    active: bool = field(default=True)


class InProcessEventBus:
    """A thread-safe event bus within one process.

    Handlers run in the publishing thread, in the order of their subscription, whether they
    subscribed to the event's class or a base. An event that a handler publishes is delivered
    to all handlers before delivery of the first event continues. A handler that subscribes
    during delivery gets the next event; one that unsubscribes gets no more.
    """

    def __init__(self) -> None:
        """Start without subscriptions."""
        self._lock = Lock()
        self._subscriptions: tuple[_Subscription, ...] = ()
        self._by_type: dict[type[Any], tuple[_Subscription, ...]] = {}

    def subscribe(self, event_type: type[E], handler: Handler[E]) -> Callable[[], None]:
        """Call `handler` with every `event_type` from now on; return a function to unsubscribe."""
        subscription = _Subscription(event_type, handler)
        with self._lock:
            self._replace((*self._subscriptions, subscription))

        def unsubscribe() -> None:
            with self._lock:
                self._remove(subscription)

        return unsubscribe

    def unsubscribe(self, event_type: type[E], handler: Handler[E]) -> bool:
        """Remove the oldest such subscription; return whether there was one."""
        with self._lock:
            for each in self._subscriptions:
                if each.event_type is event_type and each.handler == handler:
                    self._remove(each)
                    return True
        return False

    def publish(self, event: object) -> PublishResult:
        """Call every handler subscribed to the type of `event` or a base of it.

        An error of a handler is logged and part of the result; the other handlers still run.
        """
        invoked: list[Handler[Any]] = []
        errors: list[HandlerFailure] = []
        for each in self._find_subscriptions(type(event)):
            if not each.active:
                continue
            invoked.append(each.handler)
            try:
                each.handler(event)
            except Exception as error:  # noqa: BLE001 # one handler must not stop the others
                errors.append(HandlerFailure(each.handler, error))
                _log.exception("%s failed on %s", _name(each.handler), type(event).__qualname__)
        return PublishResult(event, tuple(invoked), tuple(errors))

    # the other spelling
    dispatch = publish

    def _find_subscriptions(self, event_type: type[Any]) -> tuple[_Subscription, ...]:
        cache = self._by_type
        found = cache.get(event_type)
        if found is None:
            # cache it in the table of these subscriptions, which may be outdated by now
            with self._lock:
                cache, subscriptions = self._by_type, self._subscriptions
            found = tuple(each for each in subscriptions if issubclass(event_type, each.event_type))
            cache[event_type] = found
        return found

    def _replace(self, subscriptions: tuple[_Subscription, ...]) -> None:
        self._subscriptions = subscriptions
        self._by_type = {}

    def _remove(self, subscription: _Subscription) -> None:
        subscription.active = False
        self._replace(tuple(each for each in self._subscriptions if each is not subscription))


InProcessDispatcher = InProcessEventBus  # the other spelling


def _name(handler: Handler[Any]) -> str:
    return getattr(handler, "__qualname__", None) or repr(handler)
