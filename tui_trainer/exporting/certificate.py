"""Whether an exported model is the trained one: both loaded in processes of their own and compared on held-out rows."""

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tui_trainer.errors import RunError
from tui_trainer.exporting.contract import Format, Tolerance
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.models.child import ChildFailed, ask_child
from tui_trainer.runs.folder import folder_size
from tui_trainer.runs.score_words import number, plain
from tui_trainer.units import format_bytes

ROWS = 200
_TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One model on held-out rows: `loss` in nats a label, `scores` as the task has them, bytes of its folder."""

    loss: float
    scores: dict[str, float]
    seconds_per_row: float
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """`faults` says what is not as it was trained; it is good where there are none.

    `logit_difference` is the largest one, as a share of the largest logit; `seconds` is how long the whole export took.
    """

    format: str
    rows: int
    logit_difference: float | None
    tolerance: Tolerance
    trained: Measured
    exported: Measured | None
    faults: tuple[str, ...]
    seconds: float | None = None

    def lines(self) -> list[str]:
        if self.exported is None:
            return [f"{self.format}: not as it was trained: {'; '.join(self.faults)}"]
        before, after = self.trained, self.exported
        scores = "".join(
            f", {plain(name)} {number(value)} -> {number(after.scores[name])}" for name, value in before.scores.items()
        )
        return [
            f"reloaded in a fresh process and compared on {self.rows} held-out rows:",
            f"  logits differ by {self.logit_difference:.1e} of the largest (allowed {self.tolerance.logits:.0e})",
            f"  held-out loss {before.loss:.4f} -> {after.loss:.4f}{scores}",
            f"  {format_bytes(before.bytes)} -> {format_bytes(after.bytes)}, "
            f"{1e3 * before.seconds_per_row:.2g} -> {1e3 * after.seconds_per_row:.2g} ms a row on the CPU",
            *(f"  not as it was trained: {fault}" for fault in self.faults),
        ]

    def text(self) -> str:
        return json.dumps({"is_good": not self.faults, **asdict(self)}, indent=1)


class Certifier:
    """Compares exports with one trained model, which is measured once."""

    def __init__(self, trained: TrainedModel) -> None:
        self._trained = trained
        self._before: dict[str, Any] = {}

    def certify(self, export_format: Format, folder: Path) -> Certificate:
        """Raises RunError where the trained model itself cannot be measured."""
        try:
            self._before = before = self._before or self._ask(self._trained.folder, "", None)
        except ChildFailed as failure:
            raise RunError(f"the trained model cannot be measured: it {failure}") from None
        tolerance, difference, exported = export_format.tolerance(self._trained), None, None
        try:
            after = self._ask(folder, export_format.name, before["texts"])
        except ChildFailed as failure:
            faults = [f"it cannot be loaded again: {failure.reason or failure}"]
        else:
            difference = _difference(before["logits"], after["logits"])
            exported = Measured(bytes=folder_size(folder).bytes, **_figures(after))
            faults = _faults(before, after, difference, tolerance)
        return Certificate(
            format=export_format.name,
            rows=before["rows"],
            logit_difference=difference,
            tolerance=tolerance,
            trained=Measured(bytes=self._trained.weight_bytes, **_figures(before)),
            exported=exported,
            faults=tuple(faults),
        )

    def _ask(self, folder: Path, name: str, texts: list[str] | None) -> dict[str, Any]:
        question: dict[str, Any] = {
            "run": str(self._trained.run.root),
            "folder": str(folder),
            "format": name,
            "texts": texts,
        }
        with tempfile.TemporaryDirectory() as place:
            question |= {"rows": ROWS, "logits": f"{place}/logits.npy"}
            answer = ask_child("tui_trainer.exporting.measured", json.dumps(question), _TIMEOUT_SECONDS)
            return {**json.loads(answer), "logits": np.load(f"{place}/logits.npy")}


def _figures(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in ("loss", "scores", "seconds_per_row")}


def _difference(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float(np.abs(one - other).max() / max(float(np.abs(one).max()), 1e-9))


def _faults(before: dict[str, Any], after: dict[str, Any], difference: float, allowed: Tolerance) -> list[str]:
    faults = []
    if not difference <= allowed.logits:
        faults.append(f"its logits differ by {difference:.1e} of the largest, more than {allowed.logits:.0e}")
    if not abs(after["loss"] - before["loss"]) <= allowed.loss * max(abs(before["loss"]), 1e-3):
        faults.append(f"its held-out loss is {after['loss']:.4f} instead of {before['loss']:.4f}")
    if after["labels"] != before["labels"]:
        faults.append(f"its labels are {', '.join(after['labels'])} instead of {', '.join(before['labels'])}")
    if after["token_ids"] is None:
        faults.append("there is no tokenizer beside it")
    elif after["token_ids"] != before["token_ids"]:
        faults.append("its tokenizer reads texts otherwise")
    return faults
