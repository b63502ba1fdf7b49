"""Handlers: how each request is carried out, the same for every dialect and backend."""
