"""Context compaction: what a model gets of a conversation that no longer fits its window.

The conversation itself stays whole; a `Compaction` says what is left out when it is sent. Old tool
results go first, oldest first: they can be had again. If that is not enough, old turns are
replaced by a summary. A tool call always keeps a result, and the latest turns stay. The `Context`
of a run is compacted before it exceeds the window of the model, or once it was refused.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, TypeAlias, cast

from weakincentives.adapters.errors import ContextTooLongError, ProviderError
from weakincentives.adapters.events import CompactionReason, ContextCompacted
from weakincentives.adapters.loop.request import ModelRequester, RunInput
from weakincentives.adapters.messages import (
    AssistantMessage,
    CompletionRequest,
    Message,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from weakincentives.runtime import TokenUsage
from weakincentives.serde import encode

KEPT_TURNS = 3
"""The latest answers of the model that stay as they are, with the results of their calls."""
_MIN_RESULT = 600  # characters of a result that is not worth shortening
_CUTS = (64_000, 16_000, 4_000, 1_000)  # characters of the latest results, if nothing else helps
_CHARACTERS_PER_TOKEN = 3.0
_MEDIA_TOKENS = 1_500
_MAX_SUBJECT = 100
_MAX_FIRST_LINE = 160
_MAX_SUMMARY = 16_000  # characters; a summary or outline must be shorter than what it replaces
_MAX_WISH = 8_000  # characters of what the user said in a turn that is summarized
_SUBJECTS = (
    *("file_path", "path", "paths", "file_paths", "pattern", "command", "cmd", "query"),
    *("dir_path", "source", "destination"),
)
_TRANSCRIPT_LIMITS = (4_000, 1_000, 250, 60)  # characters shown of each text, until it fits
_SUMMARY = """

[The conversation so far was long, and its first part is left out. A summary of that part:

{summary}]"""
_WISHES = "\n\nWhat the user said meanwhile, word for word:\n{wishes}"
SUMMARIZE = """\
Below is the first part of a conversation between a user, an assistant and the tools that the
assistant calls. The assistant will continue with your summary in place of this part. Keep
everything that it needs: what the user asked for, including later requests, what was decided and
why, which files were read and what matters in them, which files were changed and how, which
commands were run and with what result, what failed, and what is left to do. Give names and paths
exactly. Write at most 600 words, facts only.

{transcript}"""


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
# the first that matches; what a model takes as input, where that is less than its window
_WINDOWS: Sequence[tuple[str, int]] = (
    (r"claude.*\[1m\]", 1_000_000),
    (r"claude", 200_000),
    (r"gpt-4\.1", 1_047_576),
    (r"gpt-5.*chat", 128_000),
    (r"gpt-5|codex", 272_000),
    (r"gpt-4o|gpt-4-turbo|chatgpt-4o", 128_000),
    (r"gpt-4-32k", 32_768),
    (r"gpt-4", 8_192),
    (r"gpt-3\.5", 16_385),
    (r"gpt-oss", 131_072),
    (r"(^|/)o[134](-|$)", 200_000),
    (r"gemini", 1_048_576),
    (r"deepseek", 128_000),
    (r"mistral-large|mistral-medium|devstral|codestral", 128_000),
    (r"qwen3-coder", 262_144),
    (r"grok-4", 256_000),
    (r"kimi-k2", 128_000),
)
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), tokens) for pattern, tokens in _WINDOWS]


@dataclass(frozen=True, slots=True)
class Compaction:
    """What is left out of a conversation when it is sent; positions are those in the whole."""

    shortened: frozenset[int] = frozenset()
    """The tool results that are replaced by a line."""
    end: int = 0
    """Where the summarized part ends; it begins after the first messages of the user."""
    summary: str = ""
    max_result: int | None = None
    """Characters of each other tool result before `cut_end`."""
    cut_end: int = 0
    read_only: Collection[str] = field(default=(), repr=False, compare=False)
    """The tools that can simply be called again."""

    def apply(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return what to send of the whole conversation."""
        start = head_length(messages)
        calls = _calls(messages)
        kept = [
            self.shorten(at, message, calls) if isinstance(message, ToolMessage) else message
            for at, message in enumerate(messages)
            if at < start or at >= self.end
        ]
        if self.end <= start:
            return tuple(kept)
        return (*_add_summary(kept[:start], self.summary), *kept[start:])

    def shorten(self, at: int, message: ToolMessage, calls: Mapping[str, ToolCall]) -> ToolMessage:
        """Return what to send of the tool result at a position; `calls` are those by call id."""
        if at in self.shortened:
            can_repeat = message.name in self.read_only
            return _stub(message, calls.get(message.call_id), can_repeat=can_repeat)
        limit = self.max_result if at < self.cut_end else None
        if limit is not None and len(message.text) > limit:
            return replace(message, text=_cut(message.text, limit), media=())
        return message


Counter: TypeAlias = Callable[[Sequence[Message]], int]
"""Returns the number of tokens in messages."""


def estimate_tokens(messages: Iterable[Message]) -> int:
    """Return about how many tokens messages have; rather more than fewer."""
    return sum(map(_estimate_message, messages))


def shorten_results(
    messages: Sequence[Message], before: Compaction, count: Counter, target: int
) -> Compaction:
    """Leave out old tool results, oldest first, until `target` tokens are left or none is."""
    compaction, tokens = before, count(before.apply(messages))
    turns, calls = _turns(messages), _calls(messages)
    latest = turns[-KEPT_TURNS] if len(turns) >= KEPT_TURNS else 0
    for at in range(max(before.end, head_length(messages)), latest):
        message = messages[at]
        if tokens <= target:
            break
        if at in compaction.shortened or not isinstance(message, ToolMessage):
            continue
        if len(message.text) <= _MIN_RESULT and not message.media:
            continue
        compaction = replace(compaction, shortened=compaction.shortened | {at})
        tokens -= count([message]) - count([compaction.shorten(at, message, calls)])
    return compaction


def cut_results(
    messages: Sequence[Message], before: Compaction, count: Counter, target: int
) -> Compaction:
    """Cut the results that are left, until `target` tokens are left; the last resort."""
    compaction = before
    for limit in _CUTS:
        if count(compaction.apply(messages)) <= target:
            break
        if compaction.max_result is None or compaction.max_result > limit:
            compaction = replace(compaction, max_result=limit, cut_end=len(messages))
    return compaction


def summary_end(messages: Sequence[Message], before: Compaction) -> int | None:
    """Return where a part to summarize can end, or None if there is nothing to summarize."""
    turns = _turns(messages)
    start = max(before.end, head_length(messages))
    for kept in (KEPT_TURNS, 1):
        end = turns[-kept] if len(turns) > kept else 0
        if end > start:
            return end
    return None


def summary_request(
    messages: Sequence[Message], before: Compaction, end: int, count: Counter, room: int
) -> str:
    """Return the text that asks for a summary of the first part; at most `room` tokens.

    It is text and not a conversation: providers reject tool calls in a request without tools.
    """
    parts = _first_part(messages, before, end)
    text = ""
    for limit in _TRANSCRIPT_LIMITS:
        lines = [*([before.summary] if before.summary else ()), *_transcript(parts, limit)]
        text = SUMMARIZE.format(transcript="\n\n".join(lines))
        if count([UserMessage(text)]) <= room:
            return text
    return _cut(text, max(1_000, int(room * _CHARACTERS_PER_TOKEN / 2)))


def add_summary(
    messages: Sequence[Message], before: Compaction, end: int, summary: str
) -> Compaction:
    """Put a summary in place of the first part, up to `end`.

    What the user said in it stays, and so does an outline if there is no summary.
    """
    parts = _first_part(messages, before, end)
    text = summary.strip() or "\n".join(
        filter(None, (before.summary, *_transcript(parts, _TRANSCRIPT_LIMITS[-1])))
    )
    text = _cut(text, _MAX_SUMMARY)
    wishes = [_cut(each.text, _MAX_WISH) for each in parts if isinstance(each, UserMessage)]
    said = _WISHES.format(wishes="\n\n".join(wishes)) if wishes else ""
    if before.summary and summary.strip():
        _, marker, earlier = before.summary.partition(_WISHES.partition("{")[0])
        said = f"{marker}{earlier}{said}"
    return replace(before, end=end, summary=f"{text}{said}")


def head_length(messages: Sequence[Message]) -> int:
    """Return how many messages come before the first answer: the prompt and the task."""
    turns = _turns(messages)
    return turns[0] if turns else len(messages)


def _turns(messages: Sequence[Message]) -> list[int]:
    return [at for at, each in enumerate(messages) if isinstance(each, AssistantMessage)]


def _calls(messages: Iterable[Message]) -> dict[str, ToolCall]:
    answers = (each for each in messages if isinstance(each, AssistantMessage))
    return {call.call_id: call for each in answers for call in each.tool_calls}


def _first_part(messages: Sequence[Message], before: Compaction, end: int) -> Sequence[Message]:
    return messages[max(before.end, head_length(messages)) : end]


def _add_summary(head: Sequence[Message], summary: str) -> tuple[Message, ...]:
    """Return the first messages with a summary; roles go on to alternate."""
    text = _SUMMARY.format(summary=summary)
    last = head[-1] if head else None
    if isinstance(last, UserMessage):
        return (*head[:-1], replace(last, text=f"{last.text}{text}"))
    return (*head, UserMessage(text.strip()))


def _stub(message: ToolMessage, call: ToolCall | None, *, can_repeat: bool) -> ToolMessage:
    """Return a result as one line: what it was, how long, and how to get it again."""
    lines = message.text.splitlines() or [""]
    first = _one_line(lines[0], _MAX_FIRST_LINE)
    subject = "" if call is None else _one_line(_find_subject(call), _MAX_SUBJECT)
    name = f"{message.name} {subject}".strip()
    again = "; call it again if you need it" if can_repeat else ""
    pictures = f" and {len(message.media)} pictures" if message.media else ""
    text = (
        f"[{name}: {len(lines):,} lines{pictures}, left out to save room{again}."
        f" The first line was: {first}]"
    )
    return replace(message, text=text, media=())


def _find_subject(call: ToolCall) -> str:
    arguments = _parse(call.arguments)
    found = next((arguments[name] for name in _SUBJECTS if arguments.get(name)), "")
    if isinstance(found, list | tuple):
        return " ".join(map(str, cast("Sequence[object]", found)))
    return str(found)


def _parse(arguments: Mapping[str, object] | str) -> Mapping[str, Any]:
    if not isinstance(arguments, str):
        return arguments
    try:
        found: object = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _transcript(messages: Iterable[Message], limit: int) -> Iterable[str]:
    for message in messages:
        text = _cut(message.text.strip(), limit)
        if isinstance(message, ToolMessage):
            outcome = "" if message.success else " (failed)"
            yield f"Result of {message.name}{outcome}:\n{text}"
            continue
        if text:
            yield f"{'User' if isinstance(message, UserMessage) else 'Assistant'}:\n{text}"
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                arguments = call.arguments
                shown = arguments if isinstance(arguments, str) else encode(arguments).decode()
                yield f"Call of {call.name}: {_cut(shown, limit)}"


def _cut(text: str, limit: int) -> str:
    """Return the beginning and the end of a text that is longer than the limit."""
    if len(text) <= limit:
        return text
    end = limit // 4
    left_out = f"\n[... {len(text) - limit:,} characters left out to save room ...]\n"
    return f"{text[: limit - end]}{left_out}{text[len(text) - end :]}"


def _one_line(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def _estimate_message(message: Message) -> int:
    tokens = 4 + _estimate(message.text)
    if isinstance(message, UserMessage | ToolMessage):
        tokens += _MEDIA_TOKENS * len(message.media)
    if isinstance(message, AssistantMessage):
        for call in message.tool_calls:
            arguments = call.arguments
            text = arguments if isinstance(arguments, str) else encode(arguments).decode()
            tokens += 8 + _estimate(call.name) + _estimate(text)
        if message.extras:
            tokens += _estimate(encode(message.extras).decode())
    return tokens


def _estimate(text: str) -> int:
    others = 0 if text.isascii() else len(text) - len(text.encode("ascii", "ignore"))
    return ceil((len(text) - others) / _CHARACTERS_PER_TOKEN) + others


class Context:
    """What is sent of a conversation, so that it fits the context window of the model."""

    def __init__(
        self,
        run: RunInput[Any],
        tools: Sequence[ToolDefinition],
        *,
        on_usage: Callable[[TokenUsage], object],
    ) -> None:
        """Watch over the conversation of a run.

        Args:
            run: The run; its model's window counts, unless its options have one. Its session
                gets a `ContextCompacted` for each compaction.
            tools: The tools that every request has.
            on_usage: Called with the tokens of each request for a summary; it may raise.
        """
        self._run = run
        self._tool_tokens = sum(
            _estimate(f"{each.description}{encode(each.schema).decode()}") for each in tools
        )
        self._window = run.options.context_window or find_context_window(run.model.model)
        self._summarizer = ModelRequester(run)
        self._on_usage = on_usage
        read_only = frozenset(tool.name for tool in run.rendered.tools if tool.read_only)
        self._compaction = Compaction(read_only=read_only)
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
            ContextTooLongError: Nothing is left to drop.
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
            self._run.session.dispatch(
                ContextCompacted(
                    **self._run.event_fields,
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


def find_context_window(model: str) -> int | None:
    """Return the tokens that a model takes in one request; None if they are not known.

    Args:
        model: The name of the model, with or without that of its provider.
    """
    return next((tokens for pattern, tokens in _PATTERNS if pattern.search(model)), None)
