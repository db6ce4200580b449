"""Micro-batches that `per_device_train_batch_size = "tune"` has measured: a record (`records.py`) under the key of the
steps, with what else decides their memory and their time.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from statistics import median

from pydantic import PositiveInt

from tui_trainer.config.load import LoadedConfig, value_of
from tui_trainer.hardware.describe import full_name
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.records import MICRO_BATCH, Key, figures_as, find_records, keep_record
from tui_trainer.planning.step_key import device_key, step_key
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.units import format_seconds

# Beside what stands in the key of a step: which rows are longest, and who wrote the model's code.
_SETTINGS = ("model.model_name_or_path", "data.path")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptMicroBatch:
    """`step_seconds`: of the micro-batches that were timed; `step_rows` is what they cut."""

    rows: PositiveInt
    step_rows: int
    step_seconds: Mapping[int, float]

    @property
    def words(self) -> str:
        """`measured: 16 rows x 2: 210 ms a step, 32 x 1: 230 ms`, the fastest first."""
        if not self.step_seconds:
            return f"measured: {self.rows} x {self._passes(self.rows)} survives the largest passes, and none was timed"
        fastest_first = sorted(self.step_seconds.items(), key=lambda pair: (pair[0] != self.rows, pair[1], -pair[0]))
        (first, seconds), *others = fastest_first
        rows = f"{first} row{'s' if first != 1 else ''}"
        fastest = f"measured: {rows} x {self._passes(first)}: {format_seconds(seconds)} a step"
        return ", ".join(
            [fastest, *(f"{size} x {self._passes(size)}: {format_seconds(value)}" for size, value in others)]
        )

    def _passes(self, rows: int) -> int:
        return -(-self.step_rows // rows)


def micro_batch_key(
    loaded: LoadedConfig,
    hardware: Hardware,
    gpu: Gpu | None,
    shape: ModelShape,
    setup: TrainingSetup,
    threads: int,
    processes: int,
) -> Key:
    device = device_key(hardware.cpu_name, threads, full_name(gpu) if gpu else "")
    share = -(-loaded.config.training.effective_batch_size // processes)
    step = step_key(loaded.config, hardware.libraries, shape, setup, 0, share, setup.longest_row, processes)
    others = [value_of(loaded.config, key) for key in _SETTINGS]
    return step.on(device, data=sha256(json.dumps(others, default=str).encode()).hexdigest()[:16])


def kept_micro_batch(key: Key) -> KeptMicroBatch | None:
    """None where none was measured, and where the record is damaged."""
    records = find_records(MICRO_BATCH, key)
    found = figures_as(KeptMicroBatch, records[-1].figures) if records else None
    is_sound = found and found.rows <= found.step_rows and (not found.step_seconds or found.rows in found.step_seconds)
    return found if is_sound else None


def keep_micro_batch(key: Key, rows: int, step_rows: int, step_seconds: Mapping[int, tuple[float, ...]]) -> None:
    """Remember it in the place of an earlier one."""
    medians = {size: median(measured) for size, measured in step_seconds.items()}
    keep_record(MICRO_BATCH, key, {"rows": rows, "step_rows": step_rows, "step_seconds": medians})
