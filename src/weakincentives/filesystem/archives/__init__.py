"""Archives: the whole state of a workspace as one ZIP file."""
