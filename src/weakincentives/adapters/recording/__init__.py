"""Record conversations with a model, and play them or a script back in its place."""

from weakincentives.adapters.recording.recorder import MAX_RECORDING_BYTES as MAX_RECORDING_BYTES
