"""`wink demo`."""
