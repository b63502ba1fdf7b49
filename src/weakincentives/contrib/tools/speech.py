"""How a dialect says things: its tools, and how a request is spelled as a call of one.

Messages for a model name tools and parameters. They are spelled here, from the same
table that the tools are made of, so that no message mentions a tool that is not there
or counts lines from another base than the tool does.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

P = TypeVar("P")

_MENTION = re.compile(r"\$([A-Za-z]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase(Generic[P]):
    """One tool of a dialect: which requests it says, and how.

    Args:
        name: What the tool is called.
        description: What a model is told about it. `$GrepParams` stands for the tool that
            says this request; a line that mentions a request that nobody says is left out.
        params: The dataclass of its parameters.
        says: The requests that it can stand for.
        understand: Returns the request that parameters mean; it may look at the workspace.
        spell: Returns the arguments that say a request; None if it cannot be said.
        aliases: Other names of parameters that models send.
        show: Returns the result as this dialect shows it; it is given the request too.
        read_only: It changes nothing.
        outside: It changes files past the workspace's methods.
    """

    name: str
    description: str
    params: type[P]
    says: tuple[type[Any], ...]
    understand: Callable[[P, Any], Any]
    spell: Callable[[Any], Mapping[str, object] | None]
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    show: Callable[[Any, Any, Any], Any] | None = None
    read_only: bool = False
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Speech:
    """The tools that are there, and what they are called."""

    phrases: tuple[Phrase[Any], ...] = ()

    def name(self, request: type[Any]) -> str | None:
        """Return the name of the tool that says a kind of request; None if there is none."""
        return next((each.name for each in self.phrases if request in each.says), None)

    def arguments(self, request: Any) -> tuple[str, Mapping[str, object]] | None:
        """Return the tool and the arguments that say a request; None if nobody says it."""
        for phrase in self.phrases:
            if type(request) in phrase.says:
                spelled = phrase.spell(request)
                if spelled is not None:
                    return phrase.name, spelled
        return None

    def call(self, request: Any, *only: str) -> str | None:
        """Return how a request is said, for a sentence: "read_file with offset=2000".

        Args:
            request: What to say.
            only: The names of the parameters to mention; all if none is given. Those that
                the dialect does not have are passed over.
        """
        said = self.arguments(request)
        if said is None:
            return None
        name, arguments = said
        shown = [f"{key}={value!r}" for key, value in arguments.items() if not only or key in only]
        return f"{name} with {', '.join(shown)}" if shown else name

    def fill(self, text: str) -> str:
        """Return a text with `$Request` replaced by names of tools, or its line left out."""
        lines = (self._filled(line) for line in text.splitlines())
        return "\n".join(line for line in lines if line is not None)

    def _filled(self, line: str) -> str | None:
        names = {kind.__name__: each.name for each in self.phrases for kind in each.says}
        mentioned = _MENTION.findall(line)
        if any(each.endswith("Params") and each not in names for each in mentioned):
            return None
        return _MENTION.sub(lambda found: names.get(found[1], found[0]), line)


def speech_of(phrases: Iterable[Phrase[Any]], performed: Iterable[type[Any]]) -> Speech:
    """Return what can be said where only some requests are carried out."""
    known = frozenset(performed)
    return Speech(tuple(each for each in phrases if known.issuperset(each.says)))
