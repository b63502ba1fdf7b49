"""Write-ahead undo journal of a host directory: savepoints that survive their process."""
