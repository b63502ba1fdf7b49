"""Prompt overrides: stored texts that replace section texts and tool descriptions.

An override is bound to the hash of the text that it replaces. When the text in the code
changes, the override is stale: it is reported and never used.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from weakincentives.errors import PromptError
from weakincentives.filesystem import Filesystem, HostFilesystem, Limits
from weakincentives.prompt.section import Section, walk
from weakincentives.serde import SerdeError, decode, encode

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_BYTES = 4_000_000
_LIMITS = Limits(max_write_length=_MAX_BYTES)


@dataclass(frozen=True, slots=True)
class PromptDescriptor:
    """A prompt and the hashes of its texts, to which overrides are bound.

    Sections are named by their keys, joined with `/`; tools by their names.
    """

    ns: str
    key: str
    sections: Mapping[str, str]
    tools: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TextOverride:
    """A text, and the hash of the text that it replaces."""

    expected_hash: str
    text: str


@dataclass(frozen=True, slots=True)
class PromptOverride:
    """Replacements for a prompt's section texts and tool descriptions."""

    ns: str
    key: str
    tag: str
    sections: Mapping[str, TextOverride] = field(default_factory=dict[str, TextOverride])
    tools: Mapping[str, TextOverride] = field(default_factory=dict[str, TextOverride])


@dataclass(frozen=True, slots=True)
class StaleOverride:
    """An override whose original text has changed or is gone; it is not used."""

    name: str
    expected_hash: str
    found_hash: str | None

    def __str__(self) -> str:
        """Return a message that names the override and the reason."""
        reason = "is gone" if self.found_hash is None else "has changed"
        return f"Override of {self.name!r} is not used: the text it was made for {reason}"


@runtime_checkable
class PromptOverridesStore(Protocol):
    """Stores and finds prompt overrides."""

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride | None:
        """Return the override of a prompt, stale or not; None if there is none."""
        ...

    def upsert(self, descriptor: PromptDescriptor, override: PromptOverride) -> PromptOverride:
        """Store an override; it replaces an earlier one with the same tag."""
        ...

    def delete(self, ns: str, key: str, tag: str) -> bool:
        """Remove an override; return whether there was one."""
        ...

    def list(self, ns: str, key: str) -> Sequence[str]:
        """Return the tags of a prompt's overrides."""
        ...


class LocalPromptOverridesStore:
    """Overrides in a directory: `<ns>/<key>/<tag>.json`, each written atomically."""

    def __init__(self, directory: Any) -> None:
        """Store overrides in `directory`: the path of an existing directory, or a filesystem."""
        is_filesystem = isinstance(directory, Filesystem)
        self._files = directory if is_filesystem else HostFilesystem(directory, limits=_LIMITS)

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride | None:
        """Return the override of a prompt; None if there is none.

        Raises:
            PromptError: The file is damaged or belongs to another prompt.
        """
        path = _path(descriptor.ns, descriptor.key, tag)
        try:
            found = decode(self._read(path), PromptOverride)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PromptError(f"Cannot read override {path!r}: {error.strerror}") from error
        except SerdeError as error:
            raise PromptError(f"Override is damaged: {path!r}: {error}") from error
        if (found.ns, found.key, found.tag) != (descriptor.ns, descriptor.key, tag):
            raise PromptError(f"Override belongs to another prompt: {path!r}")
        return found

    def upsert(self, descriptor: PromptDescriptor, override: PromptOverride) -> PromptOverride:
        """Store an override; it replaces an earlier one with the same tag.

        Raises:
            PromptError: It is already stale, or belongs to another prompt.
        """
        if (override.ns, override.key) != (descriptor.ns, descriptor.key):
            raise PromptError(f"Override belongs to another prompt: {override.ns}:{override.key}")
        for stale in find_stale_overrides(descriptor, override):
            raise PromptError(str(stale))
        path = _path(override.ns, override.key, override.tag)
        self._files.write_bytes(path, encode(override))
        return override

    def delete(self, ns: str, key: str, tag: str) -> bool:
        """Remove an override; return whether there was one."""
        try:
            self._files.delete(_path(ns, key, tag))
        except FileNotFoundError:
            return False
        return True

    def list(self, ns: str, key: str) -> Sequence[str]:
        """Return the tags of a prompt's overrides."""
        try:
            found = self._files.list(_path(ns, key, "x").rpartition("/")[0])
        except FileNotFoundError:
            return ()
        return tuple(each.name.removesuffix(".json") for each in found if each.is_file)

    def _read(self, path: str) -> bytes:
        """Read a file, but never more than the limit."""
        content = self._files.read_bytes(path, limit=_MAX_BYTES + 1).content
        if len(content) > _MAX_BYTES:
            raise PromptError(f"Override is larger than {_MAX_BYTES:,} bytes: {path!r}")
        return content


def text_hash(text: str) -> str:
    """Return the hash to which an override of `text` is bound."""
    return hashlib.sha256(text.encode()).hexdigest()


def describe(ns: str, key: str, sections: Sequence[Section[Any]]) -> PromptDescriptor:
    """Return the hashes of all texts of a prompt that accept overrides."""
    found = list(walk(sections))
    return PromptDescriptor(
        ns,
        key,
        {
            "/".join(path): text_hash(section.original_text)
            for path, section in found
            if section.accepts_overrides
        },
        {
            tool.name: text_hash(tool.description)
            for _, section in found
            for tool in section.tools
            if tool.accepts_overrides
        },
    )


def find_stale_overrides(
    descriptor: PromptDescriptor, override: PromptOverride
) -> Iterator[StaleOverride]:
    """Yield the overrides whose original text has changed or is gone."""
    pairs = ((override.sections, descriptor.sections), (override.tools, descriptor.tools))
    for stored, present in pairs:
        for name, each in stored.items():
            if present.get(name) != each.expected_hash:
                yield StaleOverride(name, each.expected_hash, present.get(name))


def _path(ns: str, key: str, tag: str) -> str:
    segments = [*ns.split("/"), key, tag]
    for segment in segments:
        if not _NAME.fullmatch(segment) or segment.endswith("."):
            raise PromptError(f"Not a plain name: {segment!r} in override {ns}:{key}@{tag}")
    return "/".join(segments) + ".json"
