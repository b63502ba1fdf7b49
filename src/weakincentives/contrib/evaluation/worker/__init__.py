"""Processes that run code: confined, killable, and gone when the process that uses them is."""

from weakincentives.contrib.evaluation.worker.engine import WorkerEngine
from weakincentives.contrib.evaluation.worker.pool import WorkerPool, WorkerProgram, unconfined

__all__ = ["WorkerEngine", "WorkerPool", "WorkerProgram", "unconfined"]
