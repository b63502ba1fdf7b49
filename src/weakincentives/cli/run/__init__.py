"""`wink run`."""
