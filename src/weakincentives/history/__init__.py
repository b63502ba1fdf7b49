"""One history: the engine behind every change of a live directory, and its record file."""
