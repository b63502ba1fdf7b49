"""Handlers: how each request is carried out, the same for every dialect and backend."""

from weakincentives.contrib.tools.handlers.registry import HANDLERS

__all__ = ["HANDLERS"]
