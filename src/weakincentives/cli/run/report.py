"""What is said of a run at its beginning and at its end."""

import signal
from collections.abc import Iterator

from weakincentives.adapters import ProviderAdapter
from weakincentives.cli.run.decision import FAILED, Decision, DecisionOptions, Resolution
from weakincentives.cli.run.job import Outcome, Plan
from weakincentives.cli.run.view import View
from weakincentives.cli.terminal import plain, say
from weakincentives.cli.units import brief_time, clock, count_text
from weakincentives.contrib.review import Review, WorkingCopy
from weakincentives.posix import display_path

_SIGNAL_BASE = 128
_NOBODY_TO_ASK = frozenset({signal.SIGTERM, signal.SIGHUP})
_MAX_NAMES = 5
_GONE = frozenset({"nothing", "patched", "discarded"})
_PATCHED = frozenset({"patched", "patched-partly"})


def print_start(view: View, copy: WorkingCopy, adapter: ProviderAdapter, plan: Plan) -> None:
    """Say what is about to be done, and where."""
    facts = {
        "task": plan.task,
        "workspace": str(copy.original),
        "copy": str(copy.place),
        "model": f"{adapter.name}:{adapter.model}",
        "dialect": plan.dialect,
        "sandbox": "local" if plan.has_shell else "none",
        "isolation": "none" if plan.has_shell else None,
        "max_tokens": plan.max_tokens,
        "deadline_seconds": plan.seconds,
        "skipped": [each.path for each in copy.skipped],
        "outward_links": list(copy.external_links),
    }
    view.told("started", facts, plain("\n".join(_beginning(copy, adapter, plan))))


def _beginning(copy: WorkingCopy, adapter: ProviderAdapter, plan: Plan) -> Iterator[str]:
    bounds = "" if plan.seconds is None else f", at most {clock(plan.seconds)}"
    if plan.has_shell:
        yield "Commands of the model run on this machine, with no isolation (--sandbox local)."
    yield (
        f"{adapter.name}:{adapter.model} works in a copy of"
        f" {display_path(str(copy.original))}{bounds}"
    )
    for each in copy.skipped[:_MAX_NAMES]:
        yield f"  not copied: {each}"
    more = len(copy.skipped) - _MAX_NAMES
    if more > 0:
        yield (f"  not copied: {more} more")
    if copy.external_links and plan.has_shell:
        # a command that writes through one changes what is outside
        yield (
            "  links that lead out of it:"
            f" {', '.join(map(display_path, copy.external_links[:_MAX_NAMES]))}"
        )


class Report:
    """The end of a run: what it came to, and what becomes of its changes."""

    def __init__(self, view: View, copy: WorkingCopy, *, is_silent: bool) -> None:
        """Report on work in `copy`; `is_silent` says nothing in words."""
        self._view = view
        self._copy = copy
        self._is_silent = is_silent

    def finish(self, outcome: Outcome, wish: DecisionOptions) -> int:
        """Say how it ended, settle the changes, and return the exit code."""
        self._tell_outcome(outcome, wish)
        if outcome.status != "done" and wish.action == "apply":
            self._say("The run did not come to its end, so nothing is applied unasked.")
            wish = DecisionOptions("keep")
        if outcome.signal in _NOBODY_TO_ASK and wish.action == "ask":
            wish = DecisionOptions("keep")
        with Review(self._copy) as review:
            settled = Decision(review, is_silent=self._is_silent).settle(wish)
        code = _exit_code(outcome, settled)
        self._view.told("finished", self._facts(outcome, settled, wish, code))
        return code

    def _tell_outcome(self, outcome: Outcome, wish: DecisionOptions) -> None:
        if outcome.answer.strip():
            self._say(f"\n{outcome.answer.strip()}\n")
        self._say(
            f"{count_text(outcome.steps, 'step')}, {count_text(outcome.tool_calls, 'tool call')},"
            f" {count_text(outcome.usage.total_tokens, 'token')},"
            f" {brief_time(outcome.seconds * 1000)}"
        )
        if outcome.dump is not None:
            self._say(f"Dump of session and files: {outcome.dump}, and .fs.zip beside it")
        if outcome.dump_error is not None:
            self._say(f"wink: no dump was written: {outcome.dump_error}")
        if outcome.status == "cancelled":
            self._say("Interrupted; what was done so far:")
        elif outcome.error is not None:
            advice = f"; {outcome.advice}" if outcome.advice else ""
            kept = "" if wish.action == "discard" else "; what was done so far is kept"
            self._say(f"wink: {outcome.error}{advice}{kept}")

    def _facts(
        self, outcome: Outcome, settled: Resolution, wish: DecisionOptions, code: int
    ) -> dict[str, object]:
        return {
            "status": outcome.status,
            "result": settled.result,
            "exit_code": code,
            "answer": outcome.answer,
            "error": outcome.error,
            "advice": outcome.advice,
            "steps": outcome.steps,
            "tool_calls": outcome.tool_calls,
            "input_tokens": outcome.usage.input_tokens,
            "output_tokens": outcome.usage.output_tokens,
            "seconds": round(outcome.seconds, 3),
            "session_id": outcome.session_id,
            "dump": None if outcome.dump is None else str(outcome.dump),
            "dump_error": outcome.dump_error,
            "workspace": str(self._copy.original),
            "copy": None if settled.result in _GONE else str(self._copy.place),
            "patch": str(wish.patch) if settled.result in _PATCHED else None,
            **settled.facts,
        }

    def _say(self, sentence: str) -> None:
        if not self._is_silent:
            say(sentence)


def _exit_code(outcome: Outcome, settled: Resolution) -> int:
    if outcome.status == "done":
        return settled.exit_code
    return FAILED if outcome.signal is None else _SIGNAL_BASE + outcome.signal
