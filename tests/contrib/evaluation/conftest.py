"""Engines for the tests of a module: starting one takes longer than most tests."""

from collections.abc import Iterator

import pytest

from tests.contrib.evaluation.runs import Run
from weakincentives.contrib.evaluation import ENGINES, Engine, create_engine
from weakincentives.filesystem import InMemoryFilesystem


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = create_engine(request.param)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def python_engine() -> Iterator[Engine]:
    engine = create_engine("python")
    yield engine
    engine.close()


@pytest.fixture
def run(engine: Engine) -> Run:
    return _run(engine)


@pytest.fixture
def python(python_engine: Engine) -> Run:
    return _run(python_engine)


def _run(engine: Engine) -> Run:
    filesystem = InMemoryFilesystem()
    filesystem.write("data.txt", "3\n1\n2\n")
    return Run(engine, filesystem)
