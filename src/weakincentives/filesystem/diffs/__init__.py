"""What changed between two states, entry by entry and line by line."""
