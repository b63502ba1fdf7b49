"""Count the tokens of the prompt and of the tools: `python -m scripts.prompt_tokens`.

For every dialect, and for what a run may have beside files (commands, evaluation), it prints a row
of a Markdown table with the tokens of the system prompt of `wink run` and of the tools as the
adapters send them. With `--tokenizer PYTHON`, a Python that has litellm, the count is that of
`cl100k_base`; otherwise the estimate of the digest. `--dump DIRECTORY` writes the texts to read.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from weakincentives.adapters import CompletionRequest, SystemMessage, ToolDefinition, UserMessage
from weakincentives.adapters.anthropic.messages import build_message_request
from weakincentives.adapters.chat_completions import build_chat_request
from weakincentives.cli.run.options import NO_COMMANDS, RunSandbox
from weakincentives.cli.run.prompt import create_prompt
from weakincentives.contrib.digest import DigestCache, estimate_tokens
from weakincentives.contrib.evaluation import choose_engine
from weakincentives.contrib.tools import FilesystemSection, repo_map_handlers
from weakincentives.contrib.tools.context import Handler
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.evaluation import evaluation_handlers
from weakincentives.contrib.tools.shell import shell_handlers
from weakincentives.filesystem import HostFilesystem
from weakincentives.prompt import Prompt
from weakincentives.runtime.session import Session
from weakincentives.sandbox import LocalSandbox

DIALECTS: tuple[DialectName, ...] = get_args(DialectName)
EXTRAS = ("files", "commands", "commands, evaluation")
HEADER = (
    "| dialect | a run with | prompt | tools, OpenAI | tools, Anthropic |\n|---|---|--:|--:|--:|"
)
_COUNT = """
import json, os, sys
import litellm
os.environ["TIKTOKEN_CACHE_DIR"] = os.path.join(
    os.path.dirname(litellm.__file__), "litellm_core_utils", "tokenizers")
import tiktoken
encoding = tiktoken.get_encoding("cl100k_base")
print(json.dumps([len(encoding.encode(each)) for each in json.load(sys.stdin)]))
"""


@dataclass(frozen=True, slots=True)
class Texts:
    """What a model gets before the task: one run in one dialect."""

    dialect: DialectName
    extras: str
    prompt: str
    tools: Sequence[ToolDefinition]

    def sent(self) -> tuple[str, str, str]:
        """Return the system prompt, and the tools as two adapters send them."""
        messages = (SystemMessage(self.prompt), UserMessage("The task."))
        request = CompletionRequest(messages, tuple(self.tools))
        chat = build_chat_request(
            request,
            max_tokens_field="max_tokens",
            native_output=True,
            with_extras=True,
            with_pictures=True,
        )
        anthropic = build_message_request(
            request,
            max_tokens=1000,
            native_output=True,
            native_tools=False,
            cache=False,
            with_pictures=True,
        )
        return self.prompt, _to_json(chat["tools"]), _to_json(anthropic["tools"])

    def readable(self) -> str:
        """Return everything for a person to read."""
        tools = (
            f"### {each.name}\n\n{each.description}\n\n{json.dumps(each.schema, indent=1)}"
            for each in self.tools
        )
        return "\n\n".join((self.prompt, *tools)) + "\n"


def texts() -> Iterator[Texts]:
    """Yield the texts of every dialect with everything that a run may have."""
    with ExitStack() as stack:
        root = stack.enter_context(TemporaryDirectory())
        files = stack.enter_context(HostFilesystem(root))
        sandbox = stack.enter_context(LocalSandbox(files))
        engine = choose_engine()
        stack.callback(engine.close)
        always = repo_map_handlers(DigestCache())
        commands = {**always, **shell_handlers(sandbox)}
        by_extras: Sequence[Mapping[type[Any], Handler]] = (
            always,
            commands,
            {**commands, **evaluation_handlers(engine)},
        )
        for dialect in DIALECTS:
            for extras, handlers in zip(EXTRAS, by_extras, strict=True):
                section = FilesystemSection(
                    filesystem=files, session=Session(), dialect=dialect, extra_handlers=handlers
                )
                stack.callback(section.close)
                where = NO_COMMANDS if extras == "files" else RunSandbox("bubblewrap")
                rendered = run_prompt(section, where).render()
                tools = [ToolDefinition(t.name, t.description, t.schema) for t in rendered.tools]
                yield Texts(dialect, extras, rendered.text, tools)


def run_prompt(section: FilesystemSection, sandbox: RunSandbox) -> Prompt[None]:
    """Return the prompt of a run without a digest: the same for every workspace."""
    return create_prompt(section, sandbox, has_digest=False)


def count(parts: Sequence[str], tokenizer: str | None) -> list[int]:
    """Return the number of tokens of each text, with the Python that has the tokenizer."""
    if tokenizer is None:
        return [estimate_tokens(each) for each in parts]
    command = (tokenizer, "-c", _COUNT)
    done = subprocess.run(command, input=json.dumps(parts), text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{tokenizer} cannot count tokens: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Count the tokens of the prompt and of the tools.")
    parser.add_argument("--tokenizer", metavar="PYTHON", help="a Python that has litellm")
    parser.add_argument("--dump", type=Path, metavar="DIRECTORY", help="write the texts there")
    options = parser.parse_args()
    found = list(texts())
    if options.dump is not None:
        options.dump.mkdir(parents=True, exist_ok=True)
        for each in found:
            name = f"{each.dialect}-{each.extras.replace(', ', '-')}.md"
            (options.dump / name).write_text(each.readable())
    counts = iter(count([part for each in found for part in each.sent()], options.tokenizer))
    print(HEADER)
    for each in found:
        cells = " | ".join(f"{next(counts):,}" for _ in each.sent())
        print(f"| `{each.dialect}` | {each.extras} | {cells} |")


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


if __name__ == "__main__":
    main()
