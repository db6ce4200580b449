"""Small files of a model as part of a hash."""

from pathlib import Path
from typing import Protocol

from tui_trainer.models.config_fields import bad_model


class Digest(Protocol):
    """A hash that grows, such as one of xxhash."""

    def update(self, data: bytes, /) -> None: ...


def add_whole_file(digest: Digest, folder: Path, name: str) -> None:
    """Name, size and content of a file. Raises ConfigError for one that cannot be read."""
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise bad_model(f"{name} cannot be read: {error.strerror}", where=str(folder)) from None
    digest.update(f"{name}\0{len(content)}\0".encode())
    digest.update(content)
