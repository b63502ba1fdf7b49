"""Files of a language, by name: the types that searches can be narrowed to."""

import difflib

from weakincentives.errors import ToolValidationError

FILE_TYPES: dict[str, tuple[str, ...]] = {
    "asm": ("*.asm", "*.s", "*.S"),
    "bazel": ("*.bzl", "*.bazel", "BUILD", "WORKSPACE"),
    "c": ("*.c", "*.h", "*.H", "*.cats"),
    "clojure": ("*.clj", "*.cljc", "*.cljs", "*.cljx", "*.edn"),
    "cmake": ("*.cmake", "CMakeLists.txt"),
    "config": ("*.cfg", "*.conf", "*.config", "*.ini"),
    "cpp": ("*.cpp", "*.cc", "*.cxx", "*.C", "*.h", "*.hh", "*.hpp", "*.hxx", "*.H", "*.inl"),
    "cs": ("*.cs",),
    "css": ("*.css", "*.scss"),
    "csv": ("*.csv", "*.tsv"),
    "cython": ("*.pyx", "*.pxd", "*.pxi"),
    "dart": ("*.dart",),
    "docker": ("*Dockerfile*",),
    "elixir": ("*.ex", "*.exs", "*.eex", "*.heex"),
    "elm": ("*.elm",),
    "erlang": ("*.erl", "*.hrl"),
    "fortran": ("*.f", "*.f77", "*.f90", "*.f95", "*.F", "*.F90"),
    "fsharp": ("*.fs", "*.fsi", "*.fsx"),
    "go": ("*.go",),
    "gradle": ("*.gradle", "*.gradle.kts", "gradle.properties"),
    "graphql": ("*.graphql", "*.graphqls"),
    "groovy": ("*.groovy", "*.gradle"),
    "h": ("*.h", "*.hh", "*.hpp"),
    "haskell": ("*.hs", "*.lhs", "*.cabal"),
    "html": ("*.html", "*.htm", "*.ejs"),
    "java": ("*.java", "*.jsp", "*.jspx", "*.properties"),
    "js": ("*.js", "*.jsx", "*.mjs", "*.cjs", "*.vue"),
    "json": ("*.json", "*.jsonl", "*.sarif"),
    "julia": ("*.jl",),
    "jupyter": ("*.ipynb",),
    "kotlin": ("*.kt", "*.kts"),
    "less": ("*.less",),
    "license": ("LICENSE*", "COPYING*", "NOTICE*"),
    "lisp": ("*.lisp", "*.lsp", "*.el", "*.cl"),
    "log": ("*.log",),
    "lua": ("*.lua",),
    "make": ("Makefile", "makefile", "GNUmakefile", "*.mk", "*.mak"),
    "markdown": ("*.md", "*.markdown", "*.mdown", "*.mkd", "*.mdx"),
    "matlab": ("*.m",),
    "nix": ("*.nix",),
    "objc": ("*.m", "*.h"),
    "ocaml": ("*.ml", "*.mli", "*.mll", "*.mly"),
    "perl": ("*.pl", "*.pm", "*.t", "*.perl"),
    "php": ("*.php", "*.phtml"),
    "protobuf": ("*.proto",),
    "ps": ("*.ps1", "*.psm1", "*.psd1"),
    "py": ("*.py", "*.pyi"),
    "r": ("*.R", "*.r", "*.Rmd", "*.Rnw"),
    "rst": ("*.rst",),
    "ruby": ("*.rb", "*.gemspec", "Gemfile", "Rakefile", "config.ru"),
    "rust": ("*.rs",),
    "sass": ("*.sass", "*.scss"),
    "scala": ("*.scala", "*.sbt"),
    "sh": ("*.sh", "*.bash", "*.zsh", "*.ksh", "*.fish", ".bashrc", ".profile", ".zshrc"),
    "sql": ("*.sql", "*.psql"),
    "svelte": ("*.svelte", "*.svelte.ts"),
    "svg": ("*.svg",),
    "swift": ("*.swift",),
    "tex": ("*.tex", "*.ltx", "*.cls", "*.sty", "*.bib"),
    "tf": ("*.tf", "*.tfvars", "*.hcl"),
    "toml": ("*.toml", "Cargo.lock"),
    "ts": ("*.ts", "*.tsx", "*.cts", "*.mts"),
    "txt": ("*.txt",),
    "vim": ("*.vim", ".vimrc"),
    "vue": ("*.vue",),
    "xml": ("*.xml", "*.xsd", "*.xsl", "*.xslt", "*.rng"),
    "yaml": ("*.yaml", "*.yml"),
    "zig": ("*.zig",),
}
"""The names that ripgrep gives to types of files, and how their files are called."""

_OTHER_NAMES = {
    "bash": "sh", "c++": "cpp", "csharp": "cs", "c#": "cs", "cxx": "cpp", "dockerfile": "docker",
    "golang": "go", "hs": "haskell", "ini": "config", "javascript": "js", "jsx": "js",
    "kt": "kotlin", "md": "markdown", "ml": "ocaml", "powershell": "ps", "proto": "protobuf",
    "python": "py", "rb": "ruby", "rs": "rust", "shell": "sh", "terraform": "tf", "tsx": "ts",
    "typescript": "ts", "yml": "yaml",
}  # fmt: skip


def globs_of(name: str) -> tuple[str, ...]:
    """Return the globs of a type of files.

    Raises:
        ToolValidationError: No type is called so; it says which are.
    """
    key = name.strip().lower().removeprefix(".")
    key = _OTHER_NAMES.get(key, key)
    if key in FILE_TYPES:
        return FILE_TYPES[key]
    near = difflib.get_close_matches(key, [*FILE_TYPES, *_OTHER_NAMES], 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise ToolValidationError(
        f"Type of files is not known: {name[:80]!r}{meant}; known are {', '.join(FILE_TYPES)}"
    )
