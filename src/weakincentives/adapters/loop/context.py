"""The context of a run: it is compacted before it exceeds the model's window, or once refused."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from weakincentives.adapters.context_windows import find_context_window
from weakincentives.adapters.errors import ContextTooLongError, ProviderError
from weakincentives.adapters.events import CompactionReason, ContextCompacted
from weakincentives.adapters.loop.compaction import (
    Compaction,
    add_summary,
    cut_results,
    estimate_tokens,
    estimate_tools,
    shorten_results,
    summary_end,
    summary_request,
)
from weakincentives.adapters.loop.request import Model, ModelRequester
from weakincentives.adapters.messages import (
    CompletionRequest,
    Message,
    ToolDefinition,
    UserMessage,
)
from weakincentives.adapters.options import RunOptions
from weakincentives.runtime import TokenUsage
from weakincentives.runtime.session import Session

# parts of the window; compacting is rare and thorough, because it empties the prompt cache
_FULL = 0.8  # then it is compacted
_TARGET = 0.5  # to this
_ENOUGH = 0.65  # more than this after shortening results needs a summary
_WORTH = 0.1  # less than this is not summarized
_REFUSED = 0.75  # of the tokens of a refused request: the window, if nobody says it
_RATIOS = (0.25, 4.0)  # of reported to estimated tokens
_WINDOW = re.compile(
    r"(?:maximum context length (?:is|of)|tokens >|limit of) *(\d[\d,]{2,11})", re.I
)


class Context:
    """What is sent of a conversation, so that it fits the context window of the model."""

    def __init__(
        self,
        model: Model,
        prompt_name: str,
        tools: Sequence[ToolDefinition],
        *,
        session: Session,
        options: RunOptions,
        summarizer: ModelRequester,
        on_usage: Callable[[TokenUsage], object],
        read_only: Sequence[str] = (),
    ) -> None:
        """Watch over the conversation with `model`.

        Args:
            model: The model, whose window counts unless `options` have one.
            prompt_name: The name of the prompt, for the event.
            tools: The tools that every request has.
            session: Gets a `ContextCompacted` for each compaction.
            options: The options of the run.
            summarizer: Sends the requests for summaries.
            on_usage: Called with the tokens of each such request; it may raise.
            read_only: The tools that can simply be called again.
        """
        self._model = model
        self._prompt_name = prompt_name
        self._tool_tokens = estimate_tools(tools)
        self._session = session
        self._window = options.context_window or find_context_window(model.model)
        self._summarizer = summarizer
        self._on_usage = on_usage
        self._compaction = Compaction(read_only=frozenset(read_only))
        self._ratio = 1.0

    def prepare(self, messages: Sequence[Message], step: int) -> tuple[Message, ...]:
        """Return what to send of the whole conversation, after compaction if it is too long."""
        sent = self._compaction.apply(messages)
        if self._window is None or self._count(sent) <= self._window * _FULL:
            return sent
        return self._compact(messages, sent, "full", step)

    def retry(
        self, messages: Sequence[Message], error: ContextTooLongError, step: int
    ) -> tuple[Message, ...]:
        """Return what to send after the provider has refused the last request.

        Raises:
            ContextTooLongError: There is nothing left to leave out.
        """
        sent = self._compaction.apply(messages)
        named = _WINDOW.search(str(error))
        limit = int(self._count(sent) * _REFUSED)
        found = int(named[1].replace(",", "")) if named is not None else limit
        self._window = max(1, min(found, limit, self._window or limit))
        after = self._compact(messages, sent, "refused", step)
        if after == sent:
            raise error
        return after

    def learn(self, sent: Sequence[Message], usage: TokenUsage) -> None:
        """Compare the estimate with the tokens that the provider has counted."""
        estimated = estimate_tokens(sent) + self._tool_tokens
        if usage.input_tokens and estimated:
            least, most = _RATIOS
            self._ratio = min(most, max(least, usage.input_tokens / estimated))

    def _count(self, messages: Sequence[Message]) -> int:
        return int((estimate_tokens(messages) + self._tool_tokens) * self._ratio)

    def _count_part(self, messages: Sequence[Message]) -> int:
        """Return the tokens of some messages, without the tools."""
        return int(estimate_tokens(messages) * self._ratio)

    def _compact(
        self,
        messages: Sequence[Message],
        sent: tuple[Message, ...],
        reason: CompactionReason,
        step: int,
    ) -> tuple[Message, ...]:
        window, before = self._window or 0, self._compaction
        tools = int(self._tool_tokens * self._ratio)
        target, enough = int(window * _TARGET) - tools, int(window * _ENOUGH) - tools
        count, usage = self._count_part, TokenUsage()
        found = shorten_results(messages, before, count, target)
        end = summary_end(messages, found)
        tokens = count(found.apply(messages))
        if end is not None and tokens > enough and self._saves(messages, found, end, tokens):
            text, usage = self._summarize(messages, found, end, window)
            found = add_summary(messages, found, end, text)
        found = cut_results(messages, found, count, int(window * _FULL) - tools)
        self._compaction = found
        after = found.apply(messages)
        if after != sent:
            self._session.dispatch(
                ContextCompacted(
                    prompt_name=self._prompt_name,
                    adapter=self._model.name,
                    model=self._model.model,
                    step=step,
                    reason=reason,
                    window=window,
                    tokens_before=self._count(sent),
                    tokens_after=self._count(after),
                    shortened=len(found.shortened - before.shortened),
                    summarized=max(0, found.end - before.end) if found.end != before.end else 0,
                    summary=found.summary if found.end != before.end else "",
                    fits=self._count(after) <= window * _FULL,
                    usage=usage,
                    session_id=self._session.session_id,
                )
            )
        return after

    def _saves(self, messages: Sequence[Message], found: Compaction, end: int, tokens: int) -> bool:
        """Return whether a summary would save much: it costs a request, and the prompt cache."""
        without = replace(found, end=end).apply(messages)
        return tokens - self._count_part(without) >= (self._window or 0) * _WORTH

    def _summarize(
        self, messages: Sequence[Message], found: Compaction, end: int, window: int
    ) -> tuple[str, TokenUsage]:
        """Return a summary of the first part by the model, empty if it gives none."""
        text = summary_request(messages, found, end, self._count_part, int(window * _ENOUGH))
        request = CompletionRequest((UserMessage(text),))
        try:
            completion = self._summarizer.send(request)
        except ProviderError:
            return "", TokenUsage()  # an outline takes its place
        self._on_usage(completion.usage)
        is_usable = completion.stop_reason in ("end", "length") and not completion.tool_calls
        return completion.text if is_usable else "", completion.usage
