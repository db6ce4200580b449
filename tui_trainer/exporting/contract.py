"""What every export format declares and does. One file of `formats/` is one format, found by its name.

Files there are light to import: torch, transformers and what else a format needs only inside functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tui_trainer.data.progress import Progress
from tui_trainer.errors import InputError, name_hint
from tui_trainer.exporting import formats
from tui_trainer.exporting.formats import format_names
from tui_trainer.exporting.trained_model import TrainedModel, load_model, tokenizer_in
from tui_trainer.models.files.weights import read_headers


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """What a reloaded model may differ by: logits by this share of the largest one, the held-out loss by this share."""

    logits: float
    loss: float


class Format(Protocol):
    name: str
    title: str
    libraries: tuple[str, ...]
    """What it needs beside torch and transformers: by import name, which is that of the distribution as well."""
    in_8_bits: ClassVar[bool] = False
    """Whether its weights take one byte each."""
    has_own_speed: ClassVar[bool] = False
    """Whether other code computes it than the trained model, so that `bench` measures it."""
    one_text_at_a_time: ClassVar[bool] = False
    """Whether it generates no batches of texts."""
    against_towers: ClassVar[str] = "this format has not been tested with models that have vision towers"
    """Why models that have towers for images have no such form; empty: they have."""

    def reason_against(self, trained: TrainedModel) -> str:
        """Why this model has no such form, or none that is known to be right; empty: it has."""
        return (self.against_towers if trained.has_towers else "") or self.refusal(trained)

    def refusal(self, trained: TrainedModel) -> str:
        """What a format has against a model; callers ask `reason_against`."""
        return ""

    def size_bytes(self, trained: TrainedModel) -> int:
        """Return the estimated bytes of the exported weights."""
        return trained.weight_bytes

    def needed_bytes(self, trained: TrainedModel) -> int:
        """Return the bytes of free disk space that the export needs while it is written."""
        return self.size_bytes(trained)

    allowed: Tolerance = Tolerance(logits=1e-3, loss=1e-3)

    def tolerance(self, trained: TrainedModel) -> Tolerance:
        """What its certificate allows."""
        return self.allowed

    def write(self, trained: TrainedModel, folder: Path, tell: Progress) -> None:
        """Write the model into an empty folder and report progress to `tell`. Errors of libraries are not caught."""

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        """What was written, by what it is made for: called with the model's inputs it gives an output with `logits`.

        It has `config`, `parameters()` and `get_output_embeddings()` as a model of transformers has.
        """
        return load_model(trained, folder, None, dtype=trained.compared_dtype)

    def tokenizer(self, trained: TrainedModel, folder: Path) -> Any:
        """The one that was written, as a user of this format has it: called with a text, or two of them, and with
        `truncation` it gives `input_ids` and what else the model reads. None where there is none."""
        return saved_tokenizer(trained, folder)


def fp32_bytes(trained: TrainedModel, is_int8: Callable[[str], bool] = lambda name: False) -> int:
    """Return the bytes of the whole model's weights in fp32. Matrices whose name is `is_int8` take a byte a weight."""
    headers = read_headers(trained.base or trained.folder)
    return sum(one.parameters * (1 if len(one.shape) == 2 and is_int8(name) else 4) for name, one in headers.items())


def saved_tokenizer(trained: TrainedModel, folder: Path) -> Any:
    """As transformers reads it; None where the folder has none. Raises FolderError for one that cannot be read."""
    # Where its files are missing, transformers may make one of what the config says.
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")):
        return None
    return tokenizer_in(trained, folder)


def find_format(name: str) -> Format:
    """Raises InputError for a name that is none, and for libraries that are not installed."""
    if name not in format_names():
        raise InputError(f"unknown export format {name[:60]!r}", hint=name_hint(name, format_names()))
    found = format_of(name)
    require_libraries(found)
    return found


def format_of(name: str) -> Format:
    """The one of this name, whether its libraries are installed or not."""
    found: Format = import_module(f"{formats.__name__}.{name.replace('-', '_')}").FORMAT
    return found


def all_formats() -> list[Format]:
    """Return every format in the order of names, whether its libraries are installed or not."""
    return [format_of(name) for name in format_names()]


def require_libraries(found: Format) -> None:
    """Raises InputError for those that are not installed."""
    if lacking := [library for library in found.libraries if find_spec(library) is None]:
        install = f"install it with `uv pip install {' '.join(found.libraries)}`"
        raise InputError(f"{found.name} needs {', '.join(lacking)}, which is not installed", hint=install)
