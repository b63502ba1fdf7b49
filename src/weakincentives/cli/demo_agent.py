"""The agent of `wink demo`: a scripted model in the real loop, watched turn by turn."""

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeAlias

from weakincentives.adapters import (
    CancellationToken,
    Message,
    PromptResponse,
    ScriptedAdapter,
    UserMessage,
)
from weakincentives.cli.demo_script import SCRIPT, Part, Turn
from weakincentives.cli.demo_steps import StoryError
from weakincentives.prompt import Prompt
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session

Calls: TypeAlias = tuple[ToolInvoked, ...]
_Told: TypeAlias = "SimpleQueue[ToolInvoked | None]"


class Agent:
    """Works on one task in a session; each part goes on with the conversation."""

    def __init__(self, prompt: Prompt[Any], session: Session) -> None:
        """Play the script on a prompt."""
        self._prompt = prompt
        self._session = session
        self._model = ScriptedAdapter(SCRIPT)
        self._said: tuple[Message, ...] = ()

    def work(self, part: Part) -> Generator[tuple[Turn, Calls], None, str]:
        """Yield each turn with what came of its calls as soon as they are over; return the answer.

        Raises:
            StoryError: A call did not run.
            WinkError: The run failed.
        """
        messages = (*self._said, UserMessage(part.asked)) if self._said else ()
        with self._running(messages) as (running, told):
            for turn in part.turns:
                yield turn, _calls_of(turn, told, running)
            response = running.result()
        self._said = response.messages
        return response.text

    @contextmanager
    def _running(
        self, messages: tuple[Message, ...]
    ) -> Generator[tuple[Future[PromptResponse[Any]], _Told], None, None]:
        """Run in another thread, as turns are shown meanwhile; end it when nobody looks."""
        told: _Told = SimpleQueue()
        cancellation = CancellationToken()
        stop = self._session.bus.subscribe(ToolInvoked, told.put)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                self._model.evaluate,
                self._prompt,
                session=self._session,
                messages=messages,
                cancellation=cancellation,
            )
            running.add_done_callback(lambda _: told.put(None))
            try:
                yield running, told
            finally:
                cancellation.cancel()
                stop()


def _calls_of(turn: Turn, told: _Told, running: Future[PromptResponse[Any]]) -> Calls:
    """Wait for the calls of a turn; those that only read may end in any order."""
    ended: dict[str, ToolInvoked] = {}
    wanted = [call.call_id for call in turn.completion().tool_calls]
    while len(ended) < len(wanted):
        event = told.get()
        if event is None:
            running.result()
            raise StoryError(f"The run ended before its step {turn.name!r}")
        ended[event.call_id] = event
    return tuple(ended[each] for each in wanted)
