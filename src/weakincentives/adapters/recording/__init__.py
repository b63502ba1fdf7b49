"""Scripted, recorded and replayed conversations."""

from weakincentives.adapters.recording.format import MAX_RECORDING_BYTES as MAX_RECORDING_BYTES
