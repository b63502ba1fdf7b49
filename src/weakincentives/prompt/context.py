"""What a tool handler may use: the prompt, the session, the files, and how long it has."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from weakincentives.filesystem import Filesystem
from weakincentives.runtime import BudgetTracker, Deadline
from weakincentives.runtime.session import Session

OutputT_co = TypeVar("OutputT_co", covariant=True)


class PromptProtocol(Protocol[OutputT_co]):
    """A prompt, as far as a tool handler is concerned."""

    @property
    def ns(self) -> str:
        """The family of prompts that it belongs to."""
        ...

    @property
    def key(self) -> str:
        """What it is called there."""
        ...

    def filesystem(self) -> Filesystem | None:
        """Return the workspace that the prompt brings, if it brings one."""
        ...


class RenderedPromptProtocol(Protocol[OutputT_co]):
    """A rendered prompt, as far as a tool handler is concerned."""

    @property
    def text(self) -> str:
        """What the model was told."""
        ...


class ProviderAdapterProtocol(Protocol[OutputT_co]):
    """What talks to the model, as far as a tool handler is concerned."""

    @property
    def name(self) -> str:
        """The adapter's name."""
        ...


# names of earlier drafts
SessionProtocol: TypeAlias = Session


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The state of the run that a tool call is part of.

    Files are reached through `filesystem` and nothing else: what is changed through it
    is undone if the call fails.
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
        """Return the same for one call, with the files as it may see them."""
        # every call pays for this: `dataclasses.replace` takes three times as long
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
