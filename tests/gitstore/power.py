"""A power failure, simulated: files that were not synced are lost, and the machine is restarted."""

from pathlib import Path

from weakincentives.gitstore.commit_log import LOG

_BOOT_AT = 24  # in the log: after the magic number and the token
OTHER_BOOT = b"11111111-2222-3333-4444-555555555555"


def restart(git_dir: Path) -> None:
    """Let the log be that of an earlier run of the kernel."""
    with (git_dir / LOG).open("r+b") as log:
        log.seek(_BOOT_AT)
        log.write(OTHER_BOOT)


def lose(path: Path, how: str) -> None:
    """Leave of a file what a disk may have of it that was not synced."""
    if how == "missing":
        path.unlink(missing_ok=True)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "zeros":
        path.write_bytes(bytes(path.stat().st_size))
