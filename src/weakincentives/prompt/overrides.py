"""Overrides: texts that take the place of those in the code, as long as these are the same.

An override is made for one exact text, by its hash. When the text in the code changes,
the override is stale: it is reported and never used.
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
    """What an override is made for: a prompt, and the hashes of its texts.

    Sections go by their keys, joined with `/`; tools by their names.
    """

    ns: str
    key: str
    sections: Mapping[str, str]
    tools: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TextOverride:
    """A text, and the hash of the one that it replaces."""

    expected_hash: str
    text: str


@dataclass(frozen=True, slots=True)
class PromptOverride:
    """The texts that replace those of a prompt: of sections, and descriptions of tools."""

    ns: str
    key: str
    tag: str
    sections: Mapping[str, TextOverride] = field(default_factory=dict[str, TextOverride])
    tools: Mapping[str, TextOverride] = field(default_factory=dict[str, TextOverride])


@dataclass(frozen=True, slots=True)
class StaleOverride:
    """An override whose original has changed since, or is gone; it is not used."""

    name: str
    expected_hash: str
    found_hash: str | None

    def __str__(self) -> str:
        """Return what has become of the original."""
        fate = "is gone" if self.found_hash is None else "has changed"
        return f"Override of {self.name!r} is not used: the text it was made for {fate}"


@runtime_checkable
class PromptOverridesStore(Protocol):
    """Where overrides are kept."""

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride | None:
        """Return what is stored for a prompt, stale or not; None if there is nothing."""
        ...

    def upsert(self, descriptor: PromptDescriptor, override: PromptOverride) -> PromptOverride:
        """Store an override in place of an earlier one with its tag."""
        ...

    def delete(self, ns: str, key: str, tag: str) -> bool:
        """Remove an override; return whether there was one."""
        ...

    def list(self, ns: str, key: str) -> Sequence[str]:
        """Return the tags that are stored for a prompt."""
        ...


class LocalPromptOverridesStore:
    """Overrides in a directory: `<ns>/<key>/<tag>.json`, each written in one step."""

    def __init__(self, directory: Any) -> None:
        """Keep them in `directory`, a path that exists, or a filesystem."""
        is_filesystem = isinstance(directory, Filesystem)
        self._files = directory if is_filesystem else HostFilesystem(directory, limits=_LIMITS)

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride | None:
        """Return what is stored for a prompt; None if there is nothing.

        Raises:
            PromptError: What is stored is damaged, or of another prompt.
        """
        path = _path(descriptor.ns, descriptor.key, tag)
        try:
            found = decode(self._read(path), PromptOverride)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PromptError(f"Override cannot be read: {path!r}: {error.strerror}") from error
        except SerdeError as error:
            raise PromptError(f"Override is damaged: {path!r}: {error}") from error
        if (found.ns, found.key, found.tag) != (descriptor.ns, descriptor.key, tag):
            raise PromptError(f"Override is of another prompt: {path!r}")
        return found

    def upsert(self, descriptor: PromptDescriptor, override: PromptOverride) -> PromptOverride:
        """Store an override in place of an earlier one with its tag.

        Raises:
            PromptError: It is stale already, or of another prompt.
        """
        if (override.ns, override.key) != (descriptor.ns, descriptor.key):
            raise PromptError(f"Override is of another prompt: {override.ns}:{override.key}")
        for stale in stale_overrides(descriptor, override):
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
        """Return the tags that are stored for a prompt."""
        try:
            found = self._files.list(_path(ns, key, "x").rpartition("/")[0])
        except FileNotFoundError:
            return ()
        return tuple(each.name.removesuffix(".json") for each in found if each.is_file)

    def _read(self, path: str) -> bytes:
        """Return what is stored, read no further than is allowed."""
        content = self._files.read_bytes(path, limit=_MAX_BYTES + 1).content
        if len(content) > _MAX_BYTES:
            raise PromptError(f"Override is larger than {_MAX_BYTES:,} bytes: {path!r}")
        return content


def text_hash(text: str) -> str:
    """Return the hash that an override of `text` is bound to."""
    return hashlib.sha256(text.encode()).hexdigest()


def describe(ns: str, key: str, sections: Sequence[Section[Any]]) -> PromptDescriptor:
    """Return the texts of a prompt that may be replaced, as hashes."""
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


def stale_overrides(
    descriptor: PromptDescriptor, override: PromptOverride
) -> Iterator[StaleOverride]:
    """Yield what must not be used, because its original is not there any more."""
    pairs = ((override.sections, descriptor.sections), (override.tools, descriptor.tools))
    for stored, present in pairs:
        for name, each in stored.items():
            if present.get(name) != each.expected_hash:
                yield StaleOverride(name, each.expected_hash, present.get(name))


def _path(ns: str, key: str, tag: str) -> str:
    segments = [*ns.split("/"), key, tag]
    for segment in segments:
        if not _NAME.fullmatch(segment) or segment.endswith("."):
            raise PromptError(f"Override needs plain names, not {segment!r} of {ns}:{key}@{tag}")
    return "/".join(segments) + ".json"
