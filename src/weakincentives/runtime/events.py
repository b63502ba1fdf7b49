"""Events: what happens in a session, and the bus that tells those who want to know.

Beside the events here, the filesystem's own travel on the same bus, once the
change that they tell of is certain to stay.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID, uuid4

from weakincentives.runtime.budget import TokenUsage
from weakincentives.runtime.clock import SYSTEM_CLOCK

E = TypeVar("E")

Handler: TypeAlias = Callable[[E], object]
"""What is called with an event; what it returns is ignored."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvoked:
    """A tool was called, and the call is over: committed or rolled back."""

    tool: str
    call_id: str = ""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The arguments, as JSON values."""
    success: bool = True
    result_message: str = ""
    result_size: int | None = None
    """Characters of what the model was given."""
    error: str | None = None
    duration_ms: float = 0.0
    paths: tuple[str, ...] = ()
    """The files that the call was about."""
    mode: str | None = None
    """How a file was written."""
    snapshot_ref: str | None = None
    """The state of the files before the call, where one was kept."""
    usage: TokenUsage | None = None
    prompt_name: str | None = None
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)

    @property
    def path(self) -> str | None:
        """The first of the files that the call was about."""
        return self.paths[0] if self.paths else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRendered:
    """A prompt became text, about to be sent to a model."""

    prompt_ns: str
    prompt_key: str
    prompt_name: str | None = None
    text: str = ""
    tools: tuple[str, ...] = ()
    adapter: str | None = None
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExecuted:
    """A model has worked on a prompt to the end, or failed to."""

    prompt_ns: str
    prompt_key: str
    prompt_name: str | None = None
    adapter: str | None = None
    model: str | None = None
    success: bool = True
    text: str | None = None
    """What the model said last."""
    error: str | None = None
    usage: TokenUsage | None = None
    tool_calls: int = 0
    duration_ms: float = 0.0
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)


@dataclass(frozen=True, slots=True)
class SessionReset:
    """A session started over; who keeps something beside it starts over too."""

    session_id: UUID


@dataclass(frozen=True, slots=True)
class HandlerFailure:
    """A handler that raised, and what."""

    handler: Handler[Any]
    error: Exception

    def __str__(self) -> str:
        """Return the handler and its error."""
        return f"{_name(self.handler)} failed: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What became of an event: who was told, and who failed."""

    event: object
    handlers_invoked: tuple[Handler[Any], ...] = ()
    errors: tuple[HandlerFailure, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nobody failed."""
        return not self.errors


class EventBus(Protocol):
    """Brings events to those who subscribed to their type."""

    def subscribe(self, event_type: type[E], handler: Handler[E]) -> Callable[[], None]:
        """Tell `handler` of every `event_type` from now on; return a function that ends it."""
        ...

    def unsubscribe(self, event_type: type[E], handler: Handler[E]) -> bool:
        """End the oldest such subscription; say whether there was one."""
        ...

    def publish(self, event: object) -> PublishResult:
        """Tell everybody who subscribed to the type of `event`, or to a base of it."""
        ...


@dataclass(slots=True, eq=False)
class _Subscription:
    event_type: type[Any]
    handler: Handler[Any]
    active: bool = field(default=True)


class InProcessEventBus:
    """An event bus for the threads of one process.

    Handlers run in the thread that publishes, in the order of their subscription,
    base classes and subclasses alike. An event that a handler publishes is brought to
    everybody before the handlers after it are told of the first one. A subscription
    made meanwhile begins with the next event; one that was ended is told no more.
    """

    def __init__(self) -> None:
        """Start with nobody."""
        self._lock = Lock()
        self._subscriptions: tuple[_Subscription, ...] = ()
        self._by_type: dict[type[Any], tuple[_Subscription, ...]] = {}

    def subscribe(self, event_type: type[E], handler: Handler[E]) -> Callable[[], None]:
        """Tell `handler` of every `event_type` from now on; return a function that ends it."""
        subscription = _Subscription(event_type, handler)
        with self._lock:
            self._replace((*self._subscriptions, subscription))

        def end() -> None:
            with self._lock:
                self._end(subscription)

        return end

    def unsubscribe(self, event_type: type[E], handler: Handler[E]) -> bool:
        """End the oldest such subscription; say whether there was one."""
        with self._lock:
            for each in self._subscriptions:
                if each.event_type is event_type and each.handler == handler:
                    self._end(each)
                    return True
        return False

    def publish(self, event: object) -> PublishResult:
        """Tell everybody who subscribed to the type of `event`, or to a base of it.

        One who fails is logged, is in the result, and stops nobody.
        """
        invoked: list[Handler[Any]] = []
        errors: list[HandlerFailure] = []
        for each in self._subscribed(type(event)):
            if not each.active:
                continue
            invoked.append(each.handler)
            try:
                each.handler(event)
            except Exception as error:  # noqa: BLE001 # the others are told whatever one does
                errors.append(HandlerFailure(each.handler, error))
                _log.exception("%s failed on %s", _name(each.handler), type(event).__qualname__)
        return PublishResult(event, tuple(invoked), tuple(errors))

    # the other spelling
    dispatch = publish

    def _subscribed(self, event_type: type[Any]) -> tuple[_Subscription, ...]:
        known = self._by_type
        found = known.get(event_type)
        if found is None:
            # stored in the table that belongs to these subscriptions, which may be an old one
            with self._lock:
                known, subscriptions = self._by_type, self._subscriptions
            found = tuple(each for each in subscriptions if issubclass(event_type, each.event_type))
            known[event_type] = found
        return found

    def _replace(self, subscriptions: tuple[_Subscription, ...]) -> None:
        self._subscriptions = subscriptions
        self._by_type = {}

    def _end(self, subscription: _Subscription) -> None:
        subscription.active = False
        self._replace(tuple(each for each in self._subscriptions if each is not subscription))


InProcessDispatcher = InProcessEventBus  # the other spelling


def _name(handler: Handler[Any]) -> str:
    return getattr(handler, "__qualname__", None) or repr(handler)
