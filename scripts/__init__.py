"""What `make` runs: standard library only, because it starts before anything is installed."""
