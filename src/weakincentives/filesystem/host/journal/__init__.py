"""The undo journal of a host directory: what makes a savepoint survive its process."""
