"""What other parsers say about a project: its definitions, and its most used files.

Python is read by `ast`, JavaScript and TypeScript by the TypeScript compiler, everything else by
Universal Ctags. None of them shares code with the digest.
"""

import ast
import json
import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from weakincentives.contrib.digest.definitions import MAX_NAME

Found = dict[str, set[tuple[str, int]]]
"""The definitions of each file: name and line."""
CENTRAL = 20
"""Files that count as central: so many of those that most others use."""
_NOT_OWN = re.compile(r"(?:^|/)(?:deps|vendor|third_party|tests?|spec|examples?|docs|dist)/")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)
_WORD = re.compile(r"[A-Za-z_]\w{3,}")
_SCRIPT = """
const fs = require("fs"), path = require("path");
const ts = require(process.argv[1]);
const root = process.argv[2], out = {definitions: {}, imports: {}};
const options = {allowJs: true, moduleResolution: ts.ModuleResolutionKind.Node10};
const functions = [ts.SyntaxKind.ArrowFunction, ts.SyntaxKind.FunctionExpression];
function nameOf(node) {
  const K = ts.SyntaxKind;
  switch (node.kind) {
    case K.ClassDeclaration: case K.InterfaceDeclaration: case K.EnumDeclaration:
      return [node.name, true];
    case K.ModuleDeclaration:
      return [node.name && node.name.kind === K.Identifier ? node.name : null, true];
    case K.FunctionDeclaration: case K.TypeAliasDeclaration:
      return [node.name, false];
    case K.MethodDeclaration: case K.MethodSignature: case K.GetAccessor: case K.SetAccessor:
      return [node.name && node.name.kind !== K.ComputedPropertyName ? node.name : null, false];
    case K.Constructor:
      return [node, false];
    case K.VariableDeclaration:
      if (node.initializer && functions.includes(node.initializer.kind)) return [node.name, false];
      return [null, true];
    case K.BinaryExpression:
      if (node.operatorToken.kind === K.EqualsToken && functions.includes(node.right.kind)
          && node.left.kind === K.PropertyAccessExpression) return [node.left.name, false];
  }
  return [null, true];
}
for (const file of JSON.parse(fs.readFileSync(0, "utf8"))) {
  const text = fs.readFileSync(path.join(root, file), "utf8");
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true);
  const found = [];
  (function walk(node) {
    const [name, inside] = nameOf(node);
    if (name) {
      let start = name.getStart(source), label = name.getText(source);
      if (node.kind === ts.SyntaxKind.Constructor) {
        start = text.indexOf("constructor", start); label = "constructor";
      }
      found.push([label, source.getLineAndCharacterOfPosition(start).line + 1]);
    }
    if (inside || !name) ts.forEachChild(node, walk);
  })(source);
  out.definitions[file] = found;
  out.imports[file] = ts.preProcessFile(text, true, true).importedFiles.map((each) => {
    const at = ts.resolveModuleName(each.fileName, path.join(root, file), options, ts.sys);
    return at.resolvedModule ? path.relative(root, at.resolvedModule.resolvedFileName) : null;
  }).filter((each) => each && !each.startsWith(".."));
}
console.log(JSON.stringify(out));
"""


def central_files(uses: Counter[str]) -> list[str]:
    """Return the project's own files that most others use; not tests, vendored or built ones."""
    own = [path for path, number in uses.most_common() if number > 1 and not _NOT_OWN.search(path)]
    return own[:CENTRAL]


def python_definitions(root: Path, paths: Sequence[str]) -> Found:
    """Return the classes and functions that are not inside a function, by `ast`."""
    found: Found = {}
    for path in paths:
        tree = _parse(root / path)
        if tree is not None:
            found[path] = set(_walk(tree))
    return found


def python_uses(root: Path, paths: Sequence[str]) -> Counter[str]:
    """Return for each file how many others import it, by `ast`."""
    modules = {_module_name(root, path): path for path in paths}
    uses: Counter[str] = Counter()
    for path in paths:
        tree = _parse(root / path)
        if tree is None:
            continue
        name = _module_name(root, path)
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        targets = {modules[each] for each in _imports(tree, package) if each in modules}
        uses.update(targets - {path})
    return uses


def typescript(compiler: Path, root: Path, paths: Sequence[str]) -> tuple[Found, Counter[str]]:
    """Return definitions and uses of JavaScript and TypeScript files, by their compiler."""
    command = ["node", "-e", _SCRIPT, str(compiler), str(root)]
    done = subprocess.run(
        command, input=json.dumps(paths), capture_output=True, text=True, check=True
    )
    result = json.loads(done.stdout)
    uses: Counter[str] = Counter()
    for path, targets in result["imports"].items():
        uses.update(set(targets) - {path})
    definitions = {
        path: {(str(name), int(line)) for name, line in found}
        for path, found in result["definitions"].items()
    }
    return definitions, uses


def ctags_definitions(root: Path, paths: Sequence[str]) -> tuple[Found, Found]:
    """Return functions, types and their like, and all tags of any kind, by Universal Ctags."""
    command = ["ctags", "--output-format=json", "--fields=+nK", "--kinds-C=+p", "--kinds-C++=+p"]
    done = subprocess.run(
        [*command, "-f", "-", "-L", "-"],
        input="\n".join(paths),
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    main: Found = {path: set() for path in paths}
    every: Found = {path: set() for path in paths}
    for line in done.stdout.splitlines():
        tag = json.loads(line)
        where = (str(tag["name"]).rpartition("::")[2][:MAX_NAME], int(tag["line"]))
        every[tag["path"]].add(where)
        if tag["kind"] in _MAIN_KINDS and not tag["name"].startswith("__anon"):
            main[tag["path"]].add(where)
    return main, every


def include_uses(root: Path, paths: Sequence[str]) -> Counter[str]:
    """Return for each header how many files include it by a quoted path."""
    uses: Counter[str] = Counter()
    known = set(paths)
    for path in paths:
        text = (root / path).read_text(errors="replace")
        targets: set[str] = set()
        for written in _INCLUDE.findall(text):
            beside = (root / path).parent / written
            near = str(beside.resolve().relative_to(root)) if beside.is_file() else ""
            far = [each for each in paths if each.endswith("/" + written) or each == written]
            targets |= {near} & known or set(far if len(far) == 1 else ())
        uses.update(targets - {path})
    return uses


def name_uses(root: Path, definitions: Found) -> Counter[str]:
    """Return for each file how many others mention a name that only it defines."""
    homes: dict[str, set[str]] = {}
    for path, found in definitions.items():
        for name, _ in found:
            homes.setdefault(name, set()).add(path)
    unique = {name: paths.pop() for name, paths in homes.items() if len(paths) == 1}
    uses: Counter[str] = Counter()
    for path in definitions:
        words = set(_WORD.findall((root / path).read_text(errors="replace")))
        uses.update({unique[word] for word in words & unique.keys()} - {path})
    return uses


_MAIN_KINDS = frozenset(
    {
        *("function", "method", "func", "prototype", "class", "struct", "union", "enum"),
        *("interface", "trait", "typedef", "implementation"),
    }
)


def _parse(path: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return None


def _walk(node: ast.AST) -> Iterator[tuple[str, int]]:
    for each in ast.iter_child_nodes(node):
        is_function = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function or isinstance(each, ast.ClassDef):
            yield each.name[:MAX_NAME], each.lineno
        if not is_function:
            yield from _walk(each)


def _module_name(root: Path, path: str) -> str:
    """Return the dotted name: from the outermost directory that is a package."""
    parts = list(Path(path).with_suffix("").parts)
    start = len(parts) - 1
    while start and (root / Path(*parts[:start]) / "__init__.py").exists():
        start -= 1
    names = parts[start:]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
            module = base if node.level else node.module or ""
            for each in node.names:
                yield f"{module}.{each.name}"
            yield module
