"""Copy of the trained adapter for peft, in a folder of its own that can be moved and published."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from tui_trainer.data.progress import Progress
from tui_trainer.exporting.contract import Format, Tolerance
from tui_trainer.exporting.trained_model import TrainedModel


class Adapter(Format):
    name = "adapter"
    title = "adapter for peft"
    libraries: tuple[str, ...] = ("peft",)
    tower_refusal = ""
    allowed = Tolerance(logits=1e-6, loss=1e-6)

    def refusal(self, trained: TrainedModel) -> str:
        return "" if trained.base else "this run trained all weights, so it has no adapter"

    def size_bytes(self, trained: TrainedModel) -> int:
        return sum(path.stat().st_size for path in trained.folder.iterdir())

    def write(self, trained: TrainedModel, folder: Path, progress: Progress) -> None:
        for path in sorted(trained.folder.iterdir()):
            shutil.copyfile(path, folder / path.name, follow_symlinks=False)

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        return replace(trained, folder=folder).load(dtype=trained.compared_dtype)


FORMAT = Adapter()
