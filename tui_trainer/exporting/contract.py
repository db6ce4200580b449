"""Interface of an export format. Each file of `formats/` defines one format, and is found by its file name.

Files of `formats/` must be cheap to import: they import torch, transformers and other libraries inside functions."""

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
    """Allowed differences of an export: `logits` as a share of the largest logit, `loss` of the held-out loss."""

    logits: float
    loss: float


class Format(Protocol):
    name: str
    title: str
    libraries: tuple[str, ...]
    """Libraries that the format needs besides torch and transformers. Import and distribution name must be equal."""
    in_8_bits: ClassVar[bool] = False
    """Whether an export stores one byte per weight."""
    has_own_speed: ClassVar[bool] = False
    """Whether other code than the trained model's runs an export, so that `bench` measures its speed."""
    one_text_at_a_time: ClassVar[bool] = False
    """Whether an export can generate only one text at a time."""
    tower_refusal: ClassVar[str] = "this format has not been tested with models that have vision towers"
    """Reason to refuse models with image towers; empty if the format supports them."""

    def reason_against(self, trained: TrainedModel) -> str:
        """Return why this model cannot be exported to this format; an empty string if it can."""
        return (self.tower_refusal if trained.has_towers else "") or self.refusal(trained)

    def refusal(self, trained: TrainedModel) -> str:
        """Return why this format does not support a model; empty if it does. Callers use `reason_against` instead."""
        return ""

    def size_bytes(self, trained: TrainedModel) -> int:
        """Return the estimated bytes of the exported weights."""
        return trained.weight_bytes

    def needed_bytes(self, trained: TrainedModel) -> int:
        """Return the bytes of disk space that writing the export needs."""
        return self.size_bytes(trained)

    allowed: Tolerance = Tolerance(logits=1e-3, loss=1e-3)

    def tolerance(self, trained: TrainedModel) -> Tolerance:
        """Return how much an export may differ from this model."""
        return self.allowed

    def write(self, trained: TrainedModel, folder: Path, progress: Progress) -> None:
        """Write the model into an empty folder. Raises any error of the libraries."""

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        """Load the export with the software for which it is made, and return an object like a transformers model.

        A call with the model's inputs returns an output with `logits`. The object has `config`, `parameters()` and
        `get_output_embeddings()`."""
        return load_model(trained, folder, None, dtype=trained.compared_dtype)

    def tokenizer(self, trained: TrainedModel, folder: Path) -> Any:
        """Load the exported tokenizer as a user of this format does; None if it has none. A call with one or two texts,
        and with `truncation`, returns `input_ids` and the model's other inputs."""
        return saved_tokenizer(trained, folder)


def fp32_bytes(trained: TrainedModel, is_int8: Callable[[str], bool] = lambda name: False) -> int:
    """Return the bytes of the whole model's weights: 1 byte each in matrices whose name `is_int8`, otherwise 4."""
    tensors = read_headers(trained.base or trained.folder).items()
    return sum(it.parameters * (1 if len(it.shape) == 2 and is_int8(name) else 4) for name, it in tensors)


def saved_tokenizer(trained: TrainedModel, folder: Path) -> Any:
    """Load the tokenizer in a folder; None if the folder has none. Raises FolderError for a damaged tokenizer."""
    # If the files are missing, transformers may build a tokenizer from the config.
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")):
        return None
    return tokenizer_in(trained, folder)


def find_format(name: str) -> Format:
    """Return the format `name`. Raises InputError if it is unknown, or if its libraries are not installed."""
    if name not in format_names():
        raise InputError(f"unknown export format {name[:60]!r}", hint=name_hint(name, format_names()))
    export_format = format_of(name)
    require_libraries(export_format)
    return export_format


def format_of(name: str) -> Format:
    """Return the format `name`, which must exist, whether its libraries are installed or not."""
    export_format: Format = import_module(f"{formats.__name__}.{name.replace('-', '_')}").FORMAT
    return export_format


def all_formats() -> list[Format]:
    """Return all formats sorted by name, whether their libraries are installed or not."""
    return [format_of(name) for name in format_names()]


def require_libraries(export_format: Format) -> None:
    """Raise InputError if a library that the format needs is not installed."""
    if missing_libraries := [library for library in export_format.libraries if find_spec(library) is None]:
        message = f"{export_format.name} needs {', '.join(missing_libraries)}, which is not installed"
        raise InputError(message, hint=f"install it with `tui-trainer install {export_format.name}`")
