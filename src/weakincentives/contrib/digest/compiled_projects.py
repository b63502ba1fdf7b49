"""Commands and entry points of projects in Rust, Go, C, C++, Java, Ruby, PHP and C#.

Their build systems have fixed commands, so it is enough to know which one a project uses.
"""

import re
from collections.abc import Iterator

from weakincentives.contrib.digest.project import (
    Command,
    EntryPoint,
    Project,
    as_tables,
    is_safe_name,
    table_at,
)
from weakincentives.contrib.digest.task_runners import MAKEFILES, builds_by_default, match_tasks

_TESTS_IN_CMAKE = re.compile(
    r"^\s*(?:enable_testing\s*\(|include\s*\(\s*CTest|add_test\s*\()", re.M | re.I
)
_TESTS_IN_MESON = re.compile(r"^\s*(?:test|subdir)\s*\(\s*'", re.M)
_CHECK_TARGET = re.compile(r"^(?:check|check-am|TESTS)\b", re.M)


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
