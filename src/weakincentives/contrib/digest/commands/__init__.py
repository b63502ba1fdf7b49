"""The commands of a workspace: how its projects are tested, checked, formatted, built and run.

Each detector yields commands with the file that they were found in. They are ordered so that the
first of each purpose is the one to use: tasks that the project defines for itself, then the build
system of the language that most of its code is in, then other build systems, then what continuous
integration runs, then containers. The root comes before projects further down.

JavaScript and TypeScript commands come from package.json. Rust, Go, C, C++, Java, Ruby, PHP and C#
have fixed commands: it is enough to know which build system a project uses.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from weakincentives.contrib.digest.commands.project import (
    PURPOSES,
    Command,
    EntryPoint,
    Project,
    Table,
    as_table,
    as_tables,
    is_safe_name,
    table_at,
)
from weakincentives.contrib.digest.commands.python_project import (
    PYTHON_MANIFESTS,
    find_python_commands,
    find_python_entry_points,
)
from weakincentives.contrib.digest.commands.task_runners import (
    MAKEFILES,
    builds_by_default,
    find_tasks,
    leaves_out_tests,
    match_tasks,
)
from weakincentives.contrib.digest.commands.workflows import find_ci_commands
from weakincentives.contrib.digest.inventory import Inventory
from weakincentives.contrib.digest.languages import language_of

_MANAGERS = (
    ("pnpm-lock.yaml", "pnpm"),
    ("yarn.lock", "yarn"),
    ("bun.lock", "bun"),
    ("bun.lockb", "bun"),
    ("package-lock.json", "npm"),
    ("npm-shrinkwrap.json", "npm"),
)
_SHORT = frozenset({"npm test", "npm start", "yarn", "pnpm"})  # forms without `run`
_NO_TEST = "no test specified"  # what `npm init` writes
_DEFAULT_TASKS = ("deno.json", "deno.jsonc")
_TESTS_IN_CMAKE = re.compile(
    r"^\s*(?:enable_testing\s*\(|include\s*\(\s*CTest|add_test\s*\()", re.M | re.I
)
_TESTS_IN_MESON = re.compile(r"^\s*(?:test|subdir)\s*\(\s*'", re.M)
_CHECK_TARGET = re.compile(r"^(?:check|check-am|TESTS)\b", re.M)
MAX_COMMANDS = 3
"""Commands for one purpose."""
MAX_PROJECTS = 20
"""Projects below the root that are looked at."""
MAX_ENTRY_POINTS = 40
_MAX_COMMAND = 200  # characters; a longer one is left out
_MAX_DEPTH = 3  # levels below the root at which projects are looked for
_MANIFESTS = frozenset(
    {*PYTHON_MANIFESTS, "package.json", "Cargo.toml", "go.mod", "CMakeLists.txt", "pom.xml"}
)
_NOT_PROJECTS = frozenset(
    {
        *("contrib", "examples", "example", "tests", "test", "docs", "doc"),
    }
)
_Finder = Callable[[Project], Iterable[Command]]


def find_node_commands(project: Project) -> Iterator[Command]:
    """Yield the scripts of package.json that have a usual name, and the tasks of Deno."""
    for name in _DEFAULT_TASKS:
        for purpose, task in match_tasks(table_at(project.json(name), "tasks")):
            yield project.command(purpose, f"deno task {task}", name)
    package = project.json("package.json")
    if not package:
        return
    manager = _manager(project, package)
    yield project.command("install", f"{manager} install", "package.json")
    scripts = table_at(package, "scripts")
    for purpose, task in match_tasks(_usable(scripts)):
        yield project.command(purpose, run_script(manager, task), "package.json")
    if project.has("tsconfig.json") and not any(
        purpose == "types" for purpose, _ in match_tasks(_usable(scripts))
    ):
        yield project.command("types", f"{_executor(manager)} tsc --noEmit", "tsconfig.json")


def find_node_entry_points(project: Project) -> Iterator[EntryPoint]:
    """Yield the programs and the main module of package.json."""
    package = project.json("package.json")
    source = project.path("package.json")
    name = package.get("name")
    own = name if isinstance(name, str) else "package"
    programs = package.get("bin")
    if isinstance(programs, str):
        yield EntryPoint(own, programs, source)
    for program, target in as_table(programs).items():
        if isinstance(target, str):
            yield EntryPoint(program, target, source)
    for key in ("main", "module"):
        target = package.get(key)
        if isinstance(target, str):
            yield EntryPoint(own, target, source)
            return


def run_script(manager: str, script: str) -> str:
    """Return the command that runs a script of package.json."""
    if manager in _SHORT or f"{manager} {script}" in _SHORT:
        return f"{manager} {script}"
    return f"{manager} run {script}"


def _manager(project: Project, package: Table) -> str:
    """Return the package manager: the declared one, or the one whose lock file is there."""
    declared = package.get("packageManager")
    if isinstance(declared, str):
        name = declared.partition("@")[0]
        if name in {"npm", "pnpm", "yarn", "bun"}:
            return name
    return next((manager for lock, manager in _MANAGERS if project.has(lock)), "npm")


def _executor(manager: str) -> str:
    return {"npm": "npx", "pnpm": "pnpm exec", "yarn": "yarn", "bun": "bunx"}[manager]


def _usable(scripts: Table) -> list[str]:
    return [
        name
        for name, script in scripts.items()
        if isinstance(script, str) and _NO_TEST not in script and is_safe_name(name)
    ]


def find_rust_commands(project: Project) -> Iterator[Command]:
    """Yield Cargo's commands."""
    manifest = project.toml("Cargo.toml")
    if not manifest:
        return
    members = " --workspace" if "workspace" in manifest else ""
    yield project.command("test", f"cargo test{members}", "Cargo.toml")
    yield project.command("lint", f"cargo clippy{members}", "Cargo.toml")
    yield project.command("format", "cargo fmt", "Cargo.toml")
    yield project.command("types", f"cargo check{members}", "Cargo.toml")
    yield project.command("build", f"cargo build{members}", "Cargo.toml")
    if project.has("src/main.rs"):
        yield project.command("run", "cargo run", "Cargo.toml")


def find_go_commands(project: Project) -> Iterator[Command]:
    """Yield the commands of the go tool."""
    if not project.has("go.mod"):
        return
    yield project.command("test", "go test ./...", "go.mod")
    if name := project.first(".golangci.yml", ".golangci.yaml", ".golangci.toml"):
        yield project.command("lint", "golangci-lint run", name)
    yield project.command("lint", "go vet ./...", "go.mod")
    yield project.command("format", "gofmt -w .", "go.mod")
    yield project.command("build", "go build ./...", "go.mod")
    for entry in find_go_entry_points(project):
        yield project.command("run", f"go run {entry.target}", "go.mod")
        return


def find_c_commands(project: Project) -> Iterator[Command]:
    """Yield the commands of autotools, CMake and Meson, or of a plain Makefile."""
    source = project.first("configure", "configure.ac", "configure.in")
    if source:
        prepare = "" if source == "configure" else "autoreconf -i && "
        yield project.command("build", f"{prepare}./configure && make", source)
        if name := _check_source(project):
            yield project.command("test", "make check", name)
    if project.has("CMakeLists.txt"):
        configure = "cmake -S . -B build && cmake --build build"
        yield project.command("build", configure, "CMakeLists.txt")
        if _TESTS_IN_CMAKE.search(project.text("CMakeLists.txt")):
            yield project.command("test", "ctest --test-dir build", "CMakeLists.txt")
    if project.has("meson.build"):
        yield project.command("build", "meson setup build && meson compile -C build", "meson.build")
        if _TESTS_IN_MESON.search(project.text("meson.build")):
            yield project.command("test", "meson test -C build", "meson.build")
    makefile = project.first(*MAKEFILES)
    if makefile and not source and builds_by_default(project.text(makefile)):
        yield project.command("build", "make", makefile)


def find_other_commands(project: Project) -> Iterator[Command]:
    """Yield the commands of Maven, Gradle, Bundler, Composer, .NET and Bazel."""
    yield from _java_commands(project)
    yield from _ruby_commands(project)
    for purpose, task in match_tasks(table_at(project.json("composer.json"), "scripts")):
        yield project.command(purpose, f"composer {task}", "composer.json")
    if name := project.first("phpunit.xml", "phpunit.xml.dist"):
        yield project.command("test", "vendor/bin/phpunit", name)
    solution = next((each for each in project.list("") if each.endswith((".sln", ".csproj"))), "")
    if solution:
        yield project.command("test", "dotnet test", solution)
        yield project.command("build", "dotnet build", solution)
    if name := project.first("MODULE.bazel", "WORKSPACE", "WORKSPACE.bazel"):
        yield project.command("test", "bazel test //...", name)
        yield project.command("build", "bazel build //...", name)


def find_container_commands(project: Project) -> Iterator[Command]:
    """Yield the commands that build and start the project's containers."""
    compose = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
    if name := project.first(*compose):
        yield project.command("run", "docker compose up", name)
    if name := project.first("Dockerfile", "Containerfile"):
        yield project.command("build", f"docker build -f {name} .", name)


def find_rust_entry_points(project: Project) -> Iterator[EntryPoint]:
    """Yield the programs and the library of a crate."""
    manifest = project.toml("Cargo.toml")
    name = table_at(manifest, "package").get("name")
    own = name if isinstance(name, str) else "crate"
    for file in ("src/main.rs", "src/lib.rs"):
        if project.has(file):
            yield EntryPoint(own, project.path(file), project.path("Cargo.toml"))
    for program in as_tables(manifest.get("bin")):
        label, path = program.get("name"), program.get("path")
        if isinstance(label, str) and isinstance(path, str):
            yield EntryPoint(label, project.path(path), project.path("Cargo.toml"))


def find_go_entry_points(project: Project) -> Iterator[EntryPoint]:
    """Yield the programs of a Go module: `main.go` and the directories below `cmd`."""
    if project.has("main.go"):
        yield EntryPoint("main", ".", project.path("main.go"))
    programs = project.path("cmd")
    for each in project.inventory.below(programs):
        if each.name == "main.go":
            name = each.path[len(programs) + 1 :].rpartition("/")[0]
            if is_safe_name(name):
                yield EntryPoint(name.rpartition("/")[2], f"./cmd/{name}", each.path)


def _check_source(project: Project) -> str | None:
    """Return the file that defines `make check`."""
    if name := project.first("Makefile.am"):
        return name
    if name := project.first("Makefile.in", "Makefile", "GNUmakefile"):
        return name if _CHECK_TARGET.search(project.text(name)) else None
    return None


def _java_commands(project: Project) -> Iterator[Command]:
    if project.has("pom.xml"):
        program = "./mvnw" if project.has("mvnw") else "mvn"
        yield project.command("test", f"{program} test", "pom.xml")
        yield project.command("build", f"{program} package", "pom.xml")
    if name := project.first("build.gradle.kts", "build.gradle", "settings.gradle"):
        program = "./gradlew" if project.has("gradlew") else "gradle"
        yield project.command("test", f"{program} test", name)
        yield project.command("build", f"{program} build", name)


def _ruby_commands(project: Project) -> Iterator[Command]:
    if not project.has("Gemfile") and not project.has("Rakefile"):
        return
    prefix = "bundle exec " if project.has("Gemfile") else ""
    if project.has("Gemfile"):
        yield project.command("install", "bundle install", "Gemfile")
    if name := project.first(".rspec", "spec/spec_helper.rb"):
        yield project.command("test", f"{prefix}rspec", name)
    elif "test" in project.text("Rakefile").lower():
        yield project.command("test", f"{prefix}rake test", "Rakefile")
    if project.has(".rubocop.yml"):
        yield project.command("lint", f"{prefix}rubocop", ".rubocop.yml")


# for each build system, the languages whose projects it builds
_BUILD_SYSTEMS: tuple[tuple[frozenset[str], _Finder | None], ...] = (
    (frozenset({"Python", "Cython"}), None),  # whose commands depend on the tasks
    (frozenset({"Rust"}), find_rust_commands),
    (frozenset({"JavaScript", "TypeScript", "Vue", "Svelte"}), find_node_commands),
    (frozenset({"Go"}), find_go_commands),
    (frozenset({"C", "C++"}), find_c_commands),
    (frozenset({"Java", "Kotlin", "Ruby", "PHP", "C#"}), find_other_commands),
)
_BUILT_LANGUAGES = frozenset(name for names, _ in _BUILD_SYSTEMS for name in names)


def find_projects(inventory: Inventory) -> Sequence[Project]:
    """Return the root and the directories below it that have a manifest."""
    found: dict[str, None] = {}
    for each in inventory.files:
        *parents, name = each.path.split("/")
        is_near = name in _MANIFESTS and 0 < len(parents) <= _MAX_DEPTH
        if is_near and _NOT_PROJECTS.isdisjoint(parents) and not inventory.is_vendored(each.path):
            found["/".join(parents)] = None
    nearest = sorted(found, key=lambda path: (path.count("/"), path))[:MAX_PROJECTS]
    return [Project(inventory), *(Project(inventory, path) for path in nearest)]


def find_commands(projects: Sequence[Project]) -> Sequence[Command]:
    """Return the commands of `projects`, by purpose, the one to use first.

    A project below the root contributes only what the projects above it do not have.
    """
    found: list[Command] = []
    for project in projects:
        have = {each.purpose for each in found}
        own = [each for each in _project_commands(project) if each.purpose not in have]
        found += own
    return [
        each
        for purpose in PURPOSES
        for each in _distinct(each for each in found if each.purpose == purpose)
    ]


def find_entry_points(projects: Sequence[Project]) -> Sequence[EntryPoint]:
    """Return where the programs of `projects` start."""
    found: dict[EntryPoint, None] = {}
    finders = (
        find_python_entry_points,
        find_node_entry_points,
        find_rust_entry_points,
        find_go_entry_points,
    )
    for project in projects:
        for find in finders:
            found.update(dict.fromkeys(find(project)))
    return list(found)[:MAX_ENTRY_POINTS]


def _project_commands(project: Project) -> Iterator[Command]:
    tasks = list(find_tasks(project))
    python = list(find_python_commands(project, tasks))
    incomplete = [each for each in tasks if python and leaves_out_tests(project, each)]
    yield from (each for each in tasks if each not in incomplete)
    main = _main_languages(project)
    for fits in (True, False):
        for languages, find in _BUILD_SYSTEMS:
            if languages.isdisjoint(main) != fits:
                yield from python if find is None else find(project)
    yield from incomplete
    yield from find_ci_commands(project)
    yield from find_container_commands(project)


def _main_languages(project: Project) -> frozenset[str]:
    """Return the language that most of the project's code is in."""
    sizes: Counter[str] = Counter()
    for each in project.files:
        name = language_of(each.name).name
        if name in _BUILT_LANGUAGES and not project.inventory.is_vendored(each.path):
            sizes[name] += each.size
    return frozenset(name for name, _ in sizes.most_common(1))


def _distinct(commands: Iterable[Command]) -> list[Command]:
    """Return the first few that differ."""
    found: dict[tuple[str, str], Command] = {}
    for each in commands:
        if len(each.command) <= _MAX_COMMAND:
            found.setdefault((each.directory, each.command), each)
    return list(found.values())[:MAX_COMMANDS]
