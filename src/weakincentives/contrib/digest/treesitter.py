"""The outline of a file in any of a dozen languages, by tree-sitter, in a process of its own.

One query for each language finds the nodes that define something. Definitions inside a function
are left out. The parser recovers from errors, so a file in the middle of an edit has an outline.

Tree-sitter takes quadratic time, and sometimes gigabytes, for input that looks like source code
and is none, and it cannot be interrupted. So `main` is that of a worker, with limits that the
kernel enforces: a hostile file may end it, and nothing else.
"""

import re
import resource
import signal
import socket
from collections.abc import Iterator
from functools import cache

import msgspec
import tree_sitter_c
import tree_sitter_c_sharp
import tree_sitter_cpp
import tree_sitter_go
import tree_sitter_java
import tree_sitter_javascript
import tree_sitter_php
import tree_sitter_python
import tree_sitter_ruby
import tree_sitter_rust
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser, Query, QueryCursor

from weakincentives.contrib.digest.definitions import (
    MAX_DEFINITIONS,
    MAX_FRAME,
    MAX_NAME,
    SourceDefinition,
    clean_signature,
)
from weakincentives.posix.frames import receive_frame, send_frame

# nodes that contain definitions, and nodes that are definitions and hide what is inside them
_SCOPE, _LEAF = "scope", "leaf"
_JAVASCRIPT = """
(class_declaration) @scope
[(function_declaration) (generator_function_declaration) (method_definition)] @leaf
(lexical_declaration (variable_declarator value: [(arrow_function) (function_expression)]) @leaf)
(variable_declaration (variable_declarator value: [(arrow_function) (function_expression)]) @leaf)
(assignment_expression left: (member_expression)
  right: [(arrow_function) (function_expression)]) @leaf
"""
_TYPESCRIPT = """
[(abstract_class_declaration) (interface_declaration) (enum_declaration) (internal_module)] @scope
[(function_signature) (method_signature) (abstract_method_signature)
 (type_alias_declaration)] @leaf
"""
_C = """
[(struct_specifier body: (_)) (union_specifier body: (_)) (enum_specifier body: (_))] @scope
[(function_definition) (type_definition) (preproc_function_def)] @leaf
(declaration declarator: (function_declarator)) @leaf
(declaration declarator: (pointer_declarator declarator: (function_declarator))) @leaf
"""
_QUERIES: dict[str, tuple[object, str]] = {
    "python": (
        tree_sitter_python.language(),
        "(class_definition) @scope (function_definition) @leaf",
    ),
    "javascript": (tree_sitter_javascript.language(), _JAVASCRIPT),
    "typescript": (tree_sitter_typescript.language_typescript(), _JAVASCRIPT + _TYPESCRIPT),
    "tsx": (tree_sitter_typescript.language_tsx(), _JAVASCRIPT + _TYPESCRIPT),
    "go": (
        tree_sitter_go.language(),
        "[(function_declaration) (method_declaration) (type_spec) (type_alias)] @leaf",
    ),
    "rust": (
        tree_sitter_rust.language(),
        """
        [(impl_item) (trait_item) (mod_item body: (_))] @scope
        [(function_item) (function_signature_item) (struct_item) (enum_item) (union_item)
         (type_item) (const_item) (static_item) (macro_definition)] @leaf
        """,
    ),
    "c": (tree_sitter_c.language(), _C),
    "cpp": (
        tree_sitter_cpp.language(),
        _C
        + """
        [(class_specifier body: (_)) (namespace_definition)] @scope
        (alias_declaration) @leaf
        (field_declaration declarator: (function_declarator)) @leaf
        """,
    ),
    "java": (
        tree_sitter_java.language(),
        """
        [(class_declaration) (interface_declaration) (enum_declaration) (record_declaration)
         (annotation_type_declaration)] @scope
        [(method_declaration) (constructor_declaration)] @leaf
        """,
    ),
    "ruby": (
        tree_sitter_ruby.language(),
        "[(class) (module)] @scope [(method) (singleton_method)] @leaf",
    ),
    "php": (
        tree_sitter_php.language_php(),
        """
        [(class_declaration) (interface_declaration) (trait_declaration)
         (enum_declaration)] @scope
        [(function_definition) (method_declaration)] @leaf
        """,
    ),
    "csharp": (
        tree_sitter_c_sharp.language(),
        """
        [(namespace_declaration) (class_declaration) (interface_declaration)
         (struct_declaration) (enum_declaration) (record_declaration)] @scope
        [(method_declaration) (constructor_declaration) (property_declaration)
         (delegate_declaration)] @leaf
        """,
    ),
}
_NAME_FIELDS = ("name", "declarator", "left", "property")
_TYPES = frozenset({b"int", b"void", b"char", b"long", b"float", b"double"})  # no names in C
_HASH_COMMENT = re.compile(r"#[^\n]*")
_COMMENT = re.compile(r"//[^\n]*|/\*(?:[^*]++|\*(?!/))*+\*/")
_MAX_DEPTH = 64  # nodes above a definition
_MAX_DESCENT = 12  # declarators inside declarators


def outline_source(content: bytes, family: str) -> tuple[SourceDefinition, ...]:
    """Return the definitions in a file of one of the families that have a grammar."""
    parser, query = _parser(family)
    root = parser.parse(content).root_node
    cursor = QueryCursor(query)
    cursor.set_max_start_depth(_MAX_DEPTH)  # a query takes quadratic time in a deep tree
    captured = cursor.captures(root)
    leaves = {node.id for node in captured.get(_LEAF, ())}
    nodes = [*captured.get(_SCOPE, ()), *captured.get(_LEAF, ())]
    nodes.sort(key=lambda node: (node.start_byte, -node.end_byte))
    comment = _HASH_COMMENT if family in {"python", "ruby"} else _COMMENT
    return tuple(_definitions(nodes, leaves, content, comment))[:MAX_DEFINITIONS]


@cache
def _parser(family: str) -> tuple[Parser, Query]:
    grammar, query = _QUERIES[family]
    language = Language(grammar)
    return Parser(language), Query(language, query)


def _definitions(
    nodes: list[Node], leaves: set[int], content: bytes, comment: re.Pattern[str]
) -> Iterator[SourceDefinition]:
    """Yield the definitions in the order of the file; `nodes` are sorted, outer before inner."""
    open_scopes: list[Node] = []
    hidden_until = 0
    line, counted = 1, 0
    for node in nodes:
        if node.start_byte < hidden_until or _is_misread(node):
            continue
        while open_scopes and open_scopes[-1].end_byte <= node.start_byte:
            open_scopes.pop()
        if node.id in leaves:
            hidden_until = node.end_byte
        name = _find_name(node, content)
        if name is not None:
            # not start_point: tree-sitter 0.26.0 returns freed numbers there
            line += content.count(b"\n", counted, name.start_byte)
            counted = max(counted, name.start_byte)
            text = content[name.start_byte : name.end_byte].decode("utf-8", "replace")
            head = comment.sub("", _head(node, content))
            if node.type == "type_definition" and name.start_byte > node.start_byte + len(head):
                head += text  # typedef struct { ... } name
            signature = clean_signature(head)
            yield SourceDefinition(text[:MAX_NAME], line, len(open_scopes), signature)
        if node.id not in leaves:
            open_scopes.append(node)


def _is_misread(node: Node) -> bool:
    """Whether this is C that the parser did not understand, since macros are unknown to it.

    It takes a macro before a namespace for a function, and one before a constructor for a type.
    """
    declarator = node.child_by_field_name("declarator")
    if node.type not in {"function_definition", "declaration"} or declarator is None:
        return False
    if any(each.is_error and b"(" in (each.text or b"") for each in node.children):
        return True
    for _ in range(_MAX_DESCENT):
        if declarator is None or declarator.type in {"function_declarator", "operator_cast"}:
            return declarator is None
        declarator = declarator.child_by_field_name("declarator")
    return False


def _find_name(node: Node, content: bytes) -> Node | None:
    """Return the node with the name: a field of the definition, or inside its declarators.

    A prototype whose name is in capitals is a macro that the parser could not know.
    """
    is_prototype = node.type == "declaration" and node.child_by_field_name("type") is not None
    for _ in range(_MAX_DESCENT):
        below = _next_inside(node)
        if below is None:
            break
        node = below
    if node.child_count and not node.type.endswith(("name", "identifier")):
        return None
    name = content[node.start_byte : node.end_byte]
    return None if name in _TYPES or (is_prototype and name.isupper()) else node


def _next_inside(node: Node) -> Node | None:
    """Return the part of a definition or declarator that the name is in."""
    for field in _NAME_FIELDS:
        if found := node.child_by_field_name(field):
            return found
    if node.type in {"impl_item", "generic_type"}:
        return node.child_by_field_name("type")
    return node.named_child(0) if node.type == "parenthesized_declarator" else None


def _head(node: Node, content: bytes) -> str:
    """Return the source of a definition up to its body, or its first line."""
    start = node.start_byte
    keyword = b""
    if node.type in {"variable_declarator", "type_spec", "type_alias"} and node.parent:
        keyword = content[node.parent.start_byte : start].split(maxsplit=1)[0]  # it is outside
    body = _find_body(node)
    end = body.start_byte if body else _end_of_line(node, content)
    return (keyword + b" " + content[start:end]).decode("utf-8", "replace")


def _find_body(node: Node) -> Node | None:
    for field in ("body", "accessors"):
        if found := node.child_by_field_name(field):
            return found
    inner = node.child_by_field_name("value") or node.child_by_field_name("right")
    if node.type == "type_definition":
        inner = node.child_by_field_name("type")
    return inner.child_by_field_name("body") if inner else None


def _end_of_line(node: Node, content: bytes) -> int:
    line = content.find(b"\n", node.start_byte, node.end_byte)
    return node.end_byte if line < 0 else line


MAX_MEMORY = 1024 * 1024 * 1024
"""Bytes of address space."""
MAX_SECONDS = 2.0
"""Seconds of processor time for one file; a real one takes a tenth of that."""


def main() -> None:
    """Answer requests on standard input, a socket, until it is closed.

    A request is a line with the family of languages, then the file. The answer is the definitions
    in MessagePack.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=0) as connection:
        while request := receive_frame(connection, MAX_FRAME):
            family, _, content = request.partition(b"\n")
            signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)  # its signal ends the process
            found = msgspec.msgpack.encode(outline_source(content, family.decode()))
            signal.setitimer(signal.ITIMER_PROF, 0)
            send_frame(connection, found, MAX_FRAME)
