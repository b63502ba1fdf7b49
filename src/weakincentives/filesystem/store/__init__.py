"""The snapshot store: a bare git repository, written and read by our own code."""
