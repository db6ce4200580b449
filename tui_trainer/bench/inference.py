"""The table of a trained model at work: one by one, in batches, with beams, in fewer bits, compiled, exported."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tui_trainer.bench.rounds import Bench, Columns, Measured, Variant, chosen, measure_in_turns, table_of, with_spread
from tui_trainer.errors import InputError
from tui_trainer.exporting.contract import find_format
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.hardware.diagnosis import GpuChoice, choose_gpu, training_device
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.probe import probe
from tui_trainer.hardware.processor import BF16_FLAGS
from tui_trainer.reporting.facts import certificates
from tui_trainer.runs.folder import folder_size
from tui_trainer.runs.score_words import plain
from tui_trainer.units import format_bytes, format_number, format_seconds
from tui_trainer.worker.asking import WorkerFailed, ask

_SECONDS, _COMPILER_SECONDS = 540.0, 120.0
BEAMS, NEW_TOKENS = 4, 32
ONE_BY_ONE, BATCHED, COMPILED = "one by one", "in batches", "compiled"
_FORMATS = ("int8", "onnx", "onnx-int8")


@dataclass(slots=True)
class InferenceBench:
    """`rows` are asked in each turn of each variant; `only` names parts of the names of variants."""

    trained: TrainedModel
    rows: int
    rounds: int
    gpu: GpuChoice
    told: Callable[[str], None]
    only: Sequence[str] = ()
    seconds: float = _SECONDS
    _exports: dict[str, Path] = field(default_factory=dict)
    _export_bytes: dict[str, int] = field(default_factory=dict)

    def measure(self) -> Bench:
        """Exports that are not there already are written to a folder that is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="bench-") as place:

            def ask(variant: Variant, is_first: bool, seconds: float) -> dict[str, Any]:
                return self._ask(variant, is_first, seconds, Path(place))

            variants = chosen(self.variants(), self.only)
            return measure_in_turns(variants, ask, rounds=self.rounds, seconds=self.seconds, told=self.told)

    def variants(self) -> list[Variant]:
        adapter = "" if self.trained.base else "this run trained all weights, there is no adapter"
        beams = "" if self.trained.writes else "this model writes no text"
        hardware = probe()
        card, _ = choose_gpu(hardware, self.gpu)
        if training_device(hardware, card, self.gpu)[0] != "cuda":
            card = None
        return [
            self._variant(ONE_BY_ONE, batched=False),
            self._variant(BATCHED),
            self._variant(f"{BEAMS} beams", beams, beams=BEAMS),
            self._variant("adapter not merged", adapter, adapter=True),
            self._variant("bf16", _no_bf16(hardware, card), dtype="bfloat16"),
            self._variant(COMPILED, compiled=True),
            *(self._exported(name, is_on_gpu=card is not None) for name in _FORMATS),
        ]

    def _variant(self, name: str, reason: str = "", **more: Any) -> Variant:
        longest = self.trained.plan.config.task.max_target_length
        question = {
            "run": str(self.trained.run.root),
            "gpu": self.gpu,
            "batched": True,
            "rows": self.rows,
            "new_tokens": min(NEW_TOKENS, longest) if self.trained.head == "seq2seq_lm" else NEW_TOKENS,
        }
        return Variant(name=name, question=question | more, reason=reason)

    def _exported(self, name: str, *, is_on_gpu: bool) -> Variant:
        """Graphs of ONNX write one text at a time; formats are loaded to the CPU."""
        try:
            reason = find_format(name).refusal(self.trained)
        except InputError as error:
            reason = str(error).removeprefix(f"{name} ")
        is_alone = name.startswith("onnx") and self.trained.writes
        words = [*(["one by one"] if is_alone else []), *(["on the CPU"] if is_on_gpu else [])]
        return self._variant(", ".join([name, *words]), reason, format=name, batched=not is_alone)

    def _ask(self, variant: Variant, is_first: bool, seconds: float, place: Path) -> dict[str, Any]:
        question = {**variant.question, "scored": is_first}
        if name := question.get("format"):
            question["folder"] = str(self._export(name, question, seconds, place))
        limit = min(seconds, _COMPILER_SECONDS) if question.get("compiled") else seconds
        try:
            found: dict[str, Any] = ask("run_model", question, timeout_seconds=limit, sees_gpus=True)
            return found
        except WorkerFailed as failure:
            if not (question.get("compiled") and not failure.reason):
                raise
            raise WorkerFailed(f"not worth it here: the compiler and a turn {failure}") from None

    def _export(self, name: str, question: dict[str, Any], seconds: float, place: Path) -> Path:
        """That of the run where its certificate is good, else one that is written now."""
        if name not in self._exports:
            own = self.trained.run.exports / name
            if certificates(self.trained.run).get(name, {}).get("is_good") is not True:
                own = place / name
                own.mkdir(exist_ok=True)
                self.told(f"exporting to {name}")
                ask("write_format", {**question, "write": str(own)}, timeout_seconds=seconds, sees_gpus=True)
            self._exports[name], self._export_bytes[name] = own, folder_size(own).bytes
        return self._exports[name]

    def figures(self, bench: Bench) -> list[dict[str, Any]]:
        """A row for each variant: medians over its turns, latencies over the rows of all of them."""
        expected: list[str] = next((one.answers[0]["predictions"] for one in bench.measured if one.answers), [])
        return [self._row(one, expected) for one in bench.measured]

    def _row(self, one: Measured, expected: list[str]) -> dict[str, Any]:
        row: dict[str, Any] = {"name": one.variant.name, "reason": one.reason, "turns": len(one.answers)}
        if not one.answers:
            return row
        first, latencies = one.answers[0], sorted(_all(one, "latencies"))
        made = [before == now for before, now in zip(expected, first["predictions"], strict=True)]
        names = ("tokens_per_second", "peak_memory_bytes", "compile_seconds")
        return {
            **row,
            "samples_per_second": one.median("samples_per_second"),
            "samples_per_second_spread": one.spread("samples_per_second"),
            **{name: one.median(name) for name in names},
            "first_token_seconds": median(_all(one, "first_token_seconds") or [0.0]) or None,
            "latency_seconds_50": median(latencies),
            "latency_seconds_95": quantiles([*latencies, latencies[-1]], n=20)[-1],
            "disk_bytes": self._export_bytes.get(one.variant.question.get("format", "")) or self._weight_bytes,
            "loss": first.get("loss"),
            "scores": first.get("scores", {}),
            "same_predictions": sum(made) / len(made),
        }

    @property
    def _weight_bytes(self) -> int:
        """Of the weights as they are stored: in other numbers or compiled they are those of the run."""
        folders = {self.trained.folder, *filter(None, [self.trained.base])}
        return sum(path.stat().st_size for folder in folders for path in folder.glob("*.safetensors"))


def _no_bf16(hardware: Hardware, card: Gpu | None) -> str:
    """Why there is no bf16 on the card, or without one on the CPU; empty: there is."""
    if card is not None:
        return "" if card.abilities and card.abilities.bf16 else "this card has no bf16"
    return "" if hardware.cpu_flags & BF16_FLAGS else "this CPU computes bf16 only by emulation"


def _all(one: Measured, name: str) -> list[float]:
    return [value for answer in one.answers for value in answer[name]]


def table(rows: list[dict[str, Any]], *, writes: bool) -> list[list[str]]:
    """The rows for people, a title above each column; those without figures are left out."""
    scores = list(next((row["scores"] for row in rows if row["turns"]), {}))[:2]
    first: Columns = {"first token": lambda row: _ms(row["first_token_seconds"])} if writes else {}
    columns: Columns = {
        "": lambda row: row["name"],
        "samples/s": lambda row: with_spread(row["samples_per_second"], row["samples_per_second_spread"]),
        "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
        **first,
        "50 %": lambda row: _ms(row["latency_seconds_50"]),
        "95 %": lambda row: _ms(row["latency_seconds_95"]),
        "memory": lambda row: format_bytes(row["peak_memory_bytes"]),
        "on disk": lambda row: format_bytes(row["disk_bytes"]),
        "loss": lambda row: f"{row['loss']:.4f}",
        **{plain(name): partial(_score, name) for name in scores},
        "same": lambda row: f"{row['same_predictions']:.0%}",
    }
    return table_of(columns, rows)


def _score(name: str, row: Mapping[str, Any]) -> str:
    return f"{row['scores'][name]:.3f}"


def _ms(seconds: float | None) -> str:
    return "--" if seconds is None else f"{format_number(1e3 * seconds)} ms"


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """What does not apply or failed, with its reason, and whether the compiler's time is repaid."""
    found = [f"{row['name']}: {row['reason']}" for row in rows if row["reason"]]
    by_name = {row["name"]: row for row in rows if row["turns"]}
    compiled, plainly = by_name.get(COMPILED), by_name.get(BATCHED)
    if compiled and plainly:
        before, after = (1 / row["samples_per_second"] for row in (plainly, compiled))
        seconds = compiled["compile_seconds"]
        repaid = f"repaid after {seconds / (before - after):,.0f} rows" if after < before else "never repaid here"
        found.append(f"{COMPILED}: the compiler took {format_seconds(seconds)} at each start, {repaid}")
    return found
