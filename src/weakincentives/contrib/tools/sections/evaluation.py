"""Sections with one tool, which evaluates Python code over the files of the prompt's workspace."""

from typing import Any, Unpack

from weakincentives.contrib import evaluation
from weakincentives.contrib.tools.context import DEFAULT_SETTINGS, ToolSettings
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.evaluation import evaluation_tools
from weakincentives.contrib.tools.sections.base import (
    RecreatedSection,
    SectionOptions,
    check_session,
    without_overrides,
)
from weakincentives.contrib.tools.sections.memory import VfsToolsSection
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import MarkdownSection, ToolContext, check_argument
from weakincentives.runtime.session import Session

_GUIDANCE = """\
You can run Python code with `{tool}`. Use it for everything that has to be exact: counts, sums, \
statistics, dates, sorting, and the data in files. A failed call changes nothing: read its \
message, correct the code and try again."""


class EvaluationSection(RecreatedSection, MarkdownSection[None]):
    """A prompt section with a tool that evaluates Python code.

    Beside a workspace section, the code works on the files of that workspace. In a prompt without
    one, it works on files in memory, which are in `files`.

    Args:
        title: The heading.
        key: Its name in override files; derived from the title if omitted.
        session: The session that the section belongs to; None serves any session.
        engine: What runs the code, or its name; by default CPython in a confined process.
            An engine that is passed in is not closed with the section.
        limits: Limits of one evaluation.
        dialect: The name and parameters of the tool.
        settings: Rules of the tools.
        template: A text to use instead of the guidance.
        options: See `SectionOptions`; no stored text replaces that of the section by default.
    """

    _own: VfsToolsSection | None = None

    def __init__(
        self,
        *,
        title: str = "Python",
        key: str | None = "python",
        session: Session | None = None,
        engine: evaluation.Engine | str | None = None,
        limits: evaluation.EvalLimits = evaluation.DEFAULT_EVAL_LIMITS,
        dialect: DialectName = "wink",
        settings: ToolSettings = DEFAULT_SETTINGS,
        template: str | None = None,
        **options: Unpack[SectionOptions],
    ) -> None:
        """Set up the section.

        Raises:
            EngineUnavailableError: The engine is not installed, or cannot be confined here.
            PromptError: The dialect is unknown, or an argument has the wrong type.
        """
        owner = type(self).__name__
        check_argument(owner, "session", session, Session, or_none=True)
        check_argument(owner, "engine", engine, (str, evaluation.Engine), or_none=True)
        check_argument(owner, "limits", limits, evaluation.EvalLimits)
        check_argument(owner, "settings", settings, ToolSettings)
        self._session, self._given, self._engine = session, engine, _find_engine(engine)
        tools = evaluation_tools(
            self._engine, dialect, settings=settings, limits=limits, binding=self._bind_context
        )
        guidance = _GUIDANCE.format(tool=tools[0].name).replace("$", "$$")
        super().__init__(
            title=title,
            key=key,
            template=guidance if template is None else template,
            tools=tools,
            **without_overrides(options),
        )

    @property
    def engine(self) -> evaluation.Engine:
        """What runs the code."""
        return self._engine

    @property
    def files(self) -> Filesystem:
        """The files in memory for prompts without a workspace; created on first access."""
        return self._memory.filesystem

    def close(self) -> None:
        """Stop the processes of the engine, unless it was passed in, and drop the files."""
        if not isinstance(self._given, evaluation.Engine):
            self._engine.close()
        own, self._own = self._own, None
        if own is not None:
            own.close()

    @property
    def _memory(self) -> VfsToolsSection:
        if self._own is None:
            self._own = VfsToolsSection(session=self._session)
        return self._own

    def _bind_context(self, context: ToolContext) -> ToolContext:
        check_session(self.title, self._session, context)
        return context if context.filesystem is not None else self._memory.bind_context(context)


class AstevalSection(EvaluationSection):
    """The section that the specification names, with the engine that computes what Python computes.

    Pass `engine="asteval"` for the interpreter of that name, which needs the extra `asteval`.
    """

    def __init__(
        self, *, title: str = "Python Evaluation", key: str | None = "asteval", **options: Any
    ) -> None:
        """Set up the section; `options` are the other arguments of `EvaluationSection`."""
        super().__init__(title=title, key=key, **options)


def _find_engine(given: evaluation.Engine | str | None) -> evaluation.Engine:
    if given is None:
        return evaluation.choose_engine()
    return evaluation.create_engine(given) if isinstance(given, str) else given
