"""Bills that friends pay together."""
