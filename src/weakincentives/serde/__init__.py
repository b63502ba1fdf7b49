"""Serialization: dataclasses to JSON and back, and JSON schemas of dataclasses."""

from weakincentives.serde.codec import convert, decode, encode, to_builtins
from weakincentives.serde.schema import json_schema
from weakincentives.serde.validation import SerdeError

__all__ = ["SerdeError", "convert", "decode", "encode", "json_schema", "to_builtins"]
