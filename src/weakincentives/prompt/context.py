"""The context of a tool call: prompt, session, filesystem, deadline and budget."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from weakincentives.filesystem import Filesystem
from weakincentives.runtime import BudgetTracker, Deadline
from weakincentives.runtime.session import Session

OutputT_co = TypeVar("OutputT_co", covariant=True)


class PromptProtocol(Protocol[OutputT_co]):
    """The parts of a prompt that a tool handler can rely on."""

    @property
    def ns(self) -> str:
        """The namespace of the prompt."""
        ...

    @property
    def key(self) -> str:
        """Its name in the namespace."""
        ...

    def filesystem(self) -> Filesystem | None:
        """Return the prompt's workspace, if it has one."""
        ...


class RenderedPromptProtocol(Protocol[OutputT_co]):
    """The parts of a rendered prompt that a tool handler can rely on."""

    @property
    def text(self) -> str:
        """The text sent to the model."""
        ...


class ProviderAdapterProtocol(Protocol[OutputT_co]):
    """The parts of a model adapter that a tool handler can rely on."""

    @property
    def name(self) -> str:
        """The adapter's name."""
        ...


# names of earlier drafts
SessionProtocol: TypeAlias = Session


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The state of the run to which a tool call belongs.

    Use files only through `filesystem`: changes made through it are rolled back if the
    call fails.
    """

    prompt: PromptProtocol[Any] | None
    rendered_prompt: RenderedPromptProtocol[Any] | None
    adapter: ProviderAdapterProtocol[Any] | None
    session: Session
    deadline: Deadline | None = None
    budget_tracker: BudgetTracker | None = None
    filesystem: Filesystem | None = None
    call_id: str | None = None

    def for_call(self, call_id: str, filesystem: Filesystem | None) -> "ToolContext":
        """Return a copy for one call, with the filesystem that the call may use."""
        # a hot path: `dataclasses.replace` takes three times as long
        return ToolContext(
            self.prompt,
            self.rendered_prompt,
            self.adapter,
            self.session,
            self.deadline,
            self.budget_tracker,
            filesystem,
            call_id,
        )
