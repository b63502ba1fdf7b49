"""A local server that speaks the Chat Completions API, with scripted answers.

An answer is what the server does with one request. Tests pass a list of them to `serving`, and
inspect `requests` afterwards.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, TypeVar

from weakincentives.adapters import CompletionRequest, ToolCall, UserMessage

REQUEST = CompletionRequest((UserMessage("hello"),))
USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 7,
    "total_tokens": 27,
    "prompt_tokens_details": {"cached_tokens": 12},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


@dataclass
class Received:
    """A request as it reached the server."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass
class Server:
    """What was asked, and what is answered next."""

    url: str = ""
    answers: list["Answer"] = field(default_factory=list)
    requests: list[Received] = field(default_factory=list)
    stopped: Event = field(default_factory=Event)
    """Set when the test is over: endless answers end."""

    @property
    def last(self) -> dict[str, Any]:
        return self.requests[-1].body


Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_state: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        state = self.server_state
        headers = {name.lower(): value for name, value in self.headers.items()}
        state.requests.append(Received(self.path, headers, body))
        try:
            state.answers.pop(0)(self)
        except OSError:
            self.close_connection = True  # the client has hung up

    @property
    def streams(self) -> bool:
        return bool(self.server_state.requests[-1].body.get("stream"))

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # as in the base class
        """Say nothing."""


def says(
    text: str = "", *calls: ToolCall, usage: Any = USAGE, finish: str = "", **message: Any
) -> Answer:
    """Answer as the model would, streamed if that is asked for."""
    finish = finish or ("tool_calls" if calls else "stop")
    whole = {"role": "assistant", "content": text or None, **message}
    if calls:
        whole["tool_calls"] = [_wire(call, number) for number, call in enumerate(calls)]

    def answer(handler: Handler) -> None:
        if not handler.streams:
            choice = {"index": 0, "message": whole, "finish_reason": finish}
            return reply(completion(choice, usage=usage))(handler)
        wants_usage = handler.server_state.last.get("stream_options", {}).get("include_usage")
        chunks = [*pieces(text, calls), piece({}, finish_reason=finish)]
        last = [{**HEAD, "choices": [], "usage": usage}] if wants_usage else []
        return streams(*chunks, *last)(handler)

    return answer


def reply(body: Any, status: int = 200, **headers: str) -> Answer:
    """Answer with a body as it is; underscores in names of headers are dashes."""
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    sent = {"content-type": "application/json", "content-length": str(len(data))}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}

    def answer(handler: Handler) -> None:
        handler.begin(status, sent)
        handler.wfile.write(data)

    return answer


def fails(status: int, message: str = "no", *, code: Any = None, **headers: str) -> Answer:
    """Answer with a failure, in OpenAI's words."""
    error = {"message": message, "type": "some_error", "param": None, "code": code}
    return reply({"error": error}, status, **headers)


def streams(*chunks: Any, done: bool = True) -> Answer:
    """Answer with events: JSON values, or bytes as they are."""

    def answer(handler: Handler) -> None:
        begin_stream(handler)
        for chunk in (*chunks, *([b"data: [DONE]\n\n"] if done else [])):
            handler.chunk(event(chunk))
        handler.chunk(b"")

    return answer


def drops(*chunks: Any, headers_first: bool = True) -> Answer:
    """Hang up half-way: after some events, or before any answer."""

    def answer(handler: Handler) -> None:
        if headers_first:
            begin_stream(handler)
        for chunk in chunks:
            handler.chunk(event(chunk))
        handler.close_connection = True

    return answer


def never_ends(data: bytes) -> Answer:
    """Send the same again and again, until the client hangs up."""

    def answer(handler: Handler) -> None:
        begin_stream(handler)
        while not handler.server_state.stopped.wait(0.005):
            handler.chunk(data)
        handler.close_connection = True

    return answer


def is_silent(handler: Handler) -> None:
    """Never answer."""
    handler.server_state.stopped.wait(60)
    handler.close_connection = True


HEAD = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-test-1"}


def completion(*choices: Any, usage: Any = USAGE) -> dict[str, Any]:
    return {**HEAD, "choices": list(choices), "usage": usage}


def piece(delta: Any, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}


def pieces(text: str, calls: Sequence[ToolCall]) -> Iterator[dict[str, Any]]:
    """Yield an answer in small pieces, as OpenAI sends it."""
    yield piece({"role": "assistant", "content": ""})
    for start in range(0, len(text), 5):
        yield piece({"content": text[start : start + 5]})
    for number, call in enumerate(calls):
        wire = _wire(call, number)
        arguments = wire["function"].pop("arguments")
        yield piece({"tool_calls": [wire]})
        for start in range(0, len(arguments), 9):
            part = {"arguments": arguments[start : start + 9]}
            yield piece({"tool_calls": [{"index": number, "function": part}]})


def event(chunk: Any) -> bytes:
    return chunk if isinstance(chunk, bytes) else b"data: %s\n\n" % json.dumps(chunk).encode()


def begin_stream(handler: Handler) -> None:
    handler.begin(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})


def _wire(call: ToolCall, number: int) -> dict[str, Any]:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"index": number, "id": call.call_id, "type": "function", "function": function}


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""


def start(state: Server) -> tuple[ThreadingHTTPServer, Thread]:
    bound = type("Bound", (Handler,), {"server_state": state})
    server = _QuietServer(("127.0.0.1", 0), bound)
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    return server, thread


@contextmanager
def serving(*answers: Answer) -> Iterator[Server]:
    """Serve these answers, one for each request."""
    state = Server(answers=list(answers))
    server, thread = start(state)
    with server:
        try:
            yield state
        finally:
            state.stopped.set()
            server.shutdown()
            thread.join()


AdapterT = TypeVar("AdapterT")
Serve = Callable[..., AbstractContextManager[tuple[AdapterT, Server]]]


def share_server(create: Callable[..., AdapterT]) -> Serve[AdapterT]:
    """Return a context manager that serves answers to an adapter from `create(url, **given)`.

    Server and adapters are shared by all tests, because creating them takes long.
    """
    create = cache(create)

    @cache
    def started() -> Server:
        state = Server()
        start(state)
        return state

    @contextmanager
    def serve(*answers: Answer, **given: Any) -> Iterator[tuple[AdapterT, Server]]:
        state = started()
        state.answers, state.requests, state.stopped = list(answers), [], Event()
        try:
            yield create(state.url, **given), state
        finally:
            state.stopped.set()

    return serve
