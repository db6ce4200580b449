"""Measure the speed of a trained model: one input at a time, in batches, with beams, in bf16, compiled, exported."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tui_trainer.errors import FolderError, InputError
from tui_trainer.exporting.contract import Format, all_formats, find_format, require_libraries
from tui_trainer.exporting.trained_model import TrainedModel, load_tokenizer
from tui_trainer.hardware.diagnosis import GpuChoice, choose_gpu, training_device
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.probe import probe
from tui_trainer.hardware.processor import BF16_FLAGS
from tui_trainer.lines.plan_and_events import table_lines
from tui_trainer.measure import turns
from tui_trainer.measure.turns import Variant
from tui_trainer.models.heads import CAUSAL, ENCODER_DECODER
from tui_trainer.models.writing import Sampling
from tui_trainer.reporting.facts import certificates
from tui_trainer.runs.events import InferenceMeasured
from tui_trainer.runs.folder import RunFolder, folder_size
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.result import Target, display_name, targets_of
from tui_trainer.runs.state import read_run
from tui_trainer.units import format_bytes, format_number, format_seconds
from tui_trainer.worker.asking import WorkerFailed, ask
from tui_trainer.worker.questions import Report

if TYPE_CHECKING:
    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.exporting.predicting import Predictor

# Rows that are predicted one by one (for latencies, for the time to the first token), and tokens of a prompt.
_LATENCY_ROWS, _FIRST_TOKEN_ROWS, _PROMPT_TOKENS, _ROWS_AT_A_TIME = 20, 8, 32, 8


def write(question: dict[str, Any], _: Report) -> None:
    """Export the model of a run. `question` has `run`, `format` and `write` (the folder). Runs in a worker."""
    find_format(question["format"]).write(_trained(question), Path(question["write"]), lambda *_: None)


def measure(question: dict[str, Any], _: Report) -> dict[str, Any]:
    """Run a trained model in one way, and return seconds, bytes, loss and scores. Runs in a worker.

    `question` has run, gpu, batched, rows, new_tokens, scored, and only if they differ from the defaults: format and
    folder, dtype, adapter, compiled, beams, cached."""
    from tui_trainer.exporting.measured import prepared_data
    from tui_trainer.training.compiled import compiler
    from tui_trainer.training.recorder import peak_memory_bytes

    trained = _trained(question)
    data = prepared_data(trained)
    predictor = _predictor(trained, question)
    output_counts = _count_output_tokens(predictor.model)
    contents = _contents(trained, data, question["rows"])
    with compiler():
        compile_seconds = _compile(predictor, contents) if question.get("compiled") else None
        predictor.predict(contents[:1])
        latencies = [_seconds(predictor, [content]) for content in contents[:_LATENCY_ROWS]]
        predictor.predict(contents[:2] if question["batched"] else contents[:1])
        output_counts.clear()
        started_at = perf_counter()
        groups = [contents] if question["batched"] else [[content] for content in contents]
        predictions = [prediction for group in groups for prediction in predictor.predict(group)]
        seconds = perf_counter() - started_at
        if trained.generates_text:
            token_count = sum(output_counts)
            predictor.sampling = replace(predictor.sampling, max_new_tokens=1)
            first_token_seconds = [_seconds(predictor, [content]) for content in contents[:_FIRST_TOKEN_ROWS]]
        else:
            model, tokenizer, sampling = predictor.model, predictor.tokenizer, predictor.sampling
            inputs = trained.task.encode_inputs(trained.plan.config, model, tokenizer, contents, sampling)
            token_count, first_token_seconds = sum(map(len, inputs)), []
        # The peak is read before the loss is computed, because those passes have other shapes.
        peak_bytes = peak_memory_bytes(next(predictor.model.parameters()).device)
        scores = _scores(trained, data, predictor.model, question["rows"]) if question["scored"] else {}
    return {
        "samples_per_second": len(contents) / seconds,
        "tokens_per_second": token_count / seconds,
        "latencies": latencies,
        "first_token_seconds": first_token_seconds,
        "compile_seconds": compile_seconds,
        "peak_memory_bytes": peak_bytes,
        "predictions": [trained.task.prediction_words(prediction) for prediction in predictions],
        **scores,
    }


def _trained(question: dict[str, Any]) -> TrainedModel:
    return TrainedModel.of(RunFolder.open(Path(question["run"])))


def _predictor(trained: TrainedModel, question: dict[str, Any]) -> Predictor:
    import torch

    from tui_trainer.exporting.predicting import Predictor, inference_device, load_predictor

    new_tokens, beam_count = question["new_tokens"], question.get("beams", 1)
    sampling = Sampling(max_new_tokens=new_tokens, temperature=0, seed=0, num_beams=beam_count)
    gpu: GpuChoice = question["gpu"]
    if question.get("format"):
        model = find_format(question["format"]).load(trained, Path(question["folder"]))
        return Predictor(trained.task, trained.plan.config, model, load_tokenizer(trained), sampling)
    predictor = load_predictor(trained, inference_device(gpu), sampling)
    if not question.get("cached", True):
        # Without a cache, each new token computes all earlier tokens again.
        predictor.model.generation_config.use_cache = False
    if question.get("adapter"):
        device = predictor.model.device
        predictor.model = trained.load(dtype=predictor.model.dtype, merge=False).to(device)
    if dtype := question.get("dtype"):
        predictor.model = predictor.model.to(getattr(torch, dtype))
    return predictor


def _contents(trained: TrainedModel, data: PreparedData, count: int) -> list[Any]:
    """Return `count` inputs of the model, made from held-out rows, which repeat if there are too few.

    A causal model gets the beginning of a row as its prompt. All formats of a model get the same inputs."""
    from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced

    config, tokenizer = trained.plan.config, load_tokenizer(trained)
    input_reader = trained.task.input_reader(config, tokenizer)
    rows = Rows(data.eval_path or data.train_path)
    texts = []
    for index in evenly_spaced(len(rows), count):
        tokens = rows.example(index).tokens
        prompt_tokens = tokens[:_PROMPT_TOKENS] if trained.head == CAUSAL else tokens
        text = str(tokenizer.decode(prompt_tokens.tolist(), skip_special_tokens=True))
        texts.append(text.removeprefix(config.task.source_prefix).strip() or "a")
    return [input_reader.of_text(texts[index % len(texts)]) for index in range(count)]


def _count_output_tokens(model: Any) -> list[int]:
    """Make `model.generate` append the length of each generated text, with its end token, to the returned list."""
    import torch

    token_counts: list[int] = []
    original_generate = getattr(model, "generate", None)
    if original_generate is None:
        return token_counts

    def generate(*, input_ids: Any, **settings: Any) -> Any:
        output = original_generate(input_ids=input_ids, **settings)
        ids_BT = output if isinstance(output, torch.Tensor) else output.sequences
        prompt_length = 1 if model.config.is_encoder_decoder else input_ids.shape[1]
        end_ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        stop_ids = set(end_ids if isinstance(end_ids, list) else [end_ids])
        for ids in ids_BT[:, prompt_length:].tolist():
            token_counts.append(next((index + 1 for index, token in enumerate(ids) if token in stop_ids), len(ids)))
        return output

    model.generate = generate
    return token_counts


def _compile(predictor: Predictor, contents: list[Any]) -> float:
    """Compile each layer for any number of rows and tokens, and return the seconds. Raises RuntimeError on failure."""
    from tui_trainer.training.compiled import count_compiled_graphs, decoder_layers, require_graphs

    for layer in decoder_layers(predictor.model) or [predictor.model]:
        layer.compile(dynamic=True)
    started_at, graphs_before = perf_counter(), count_compiled_graphs()
    predictor.predict(contents[:1])
    predictor.predict(contents)
    require_graphs(graphs_before)
    return perf_counter() - started_at


def _seconds(predictor: Predictor, contents: list[Any]) -> float:
    started_at = perf_counter()
    predictor.predict(contents)
    return perf_counter() - started_at


def _scores(trained: TrainedModel, data: PreparedData, model: Any, most_rows: int) -> dict[str, Any]:
    from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced
    from tui_trainer.exporting.measured import layout_of, score_rows

    rows, layout = Rows(data.eval_path or data.train_path), layout_of(trained, model, _ROWS_AT_A_TIME)
    loss, scores = score_rows(trained, data, model, rows, [evenly_spaced(len(rows), most_rows)], layout)
    return {"loss": loss, "scores": scores}


_SECONDS, _COMPILER_SECONDS = 540.0, 120.0
BEAMS, NEW_TOKENS = 4, 32
ONE_BY_ONE, BATCHED, COMPILED = "one by one", "in batches", "compiled"


@dataclass(slots=True)
class InferenceBench:
    """Measurement of ways to run a model, with `rows` inputs per turn. `only` has parts of the names of variants."""

    trained: TrainedModel
    rows: int
    rounds: int
    gpu: GpuChoice
    notify: turns.Notify
    only: Sequence[str] = ()
    seconds: float = _SECONDS
    _exports: dict[str, Path] = field(default_factory=dict)

    def measure(self) -> tuple[list[dict[str, Any]], str]:
        """Return (row of figures for each variant, why not all were measured or '').

        Missing exports are written to a folder that is removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="bench-") as export_folder:
            ask_variant = partial(self._ask, folder=Path(export_folder))
            variants, time_limit = turns.pick_variants(self.variants(), self.only), turns.TimeLimit(self.seconds)
            turns.measure_in_turns(variants, ask_variant, time_limit, rounds=self.rounds, notify=self.notify)
            first_answers = [variant.answers[0] for variant in variants if variant.answers]
            expected = first_answers[0]["predictions"] if first_answers else []
            return [self._row(variant, expected) for variant in variants], time_limit.cut_short

    def variants(self) -> list[Variant]:
        no_adapter_reason = "" if self.trained.base else "this run trained all weights, so there is no adapter"
        no_text_reason = "" if self.trained.generates_text else "this model generates no text"
        hardware = probe()
        gpu, _ = choose_gpu(hardware, self.gpu)
        if training_device(hardware, gpu, self.gpu)[0] != "cuda":
            gpu = None
        return [
            Variant(name=ONE_BY_ONE, patch={"batched": False}),
            Variant(name=BATCHED),
            Variant(name=f"{BEAMS} beams", patch={"beams": BEAMS}, reason=no_text_reason),
            Variant(name="no KV cache", patch={"cached": False}, reason=no_text_reason),
            Variant(name="adapter not merged", patch={"adapter": True}, reason=no_adapter_reason),
            Variant(name="bf16", patch={"dtype": "bfloat16"}, reason=_lack_of_bf16(hardware, gpu)),
            Variant(name=COMPILED, patch={"compiled": True}),
            *(self._exported(form, is_on_gpu=gpu is not None) for form in all_formats() if form.has_own_speed),
        ]

    def _exported(self, export_format: Format, *, is_on_gpu: bool) -> Variant:
        """Return the variant that runs the model in an export format, which is loaded on the CPU."""
        name = export_format.name
        try:
            require_libraries(export_format)
            reason = export_format.reason_against(self.trained)
        except InputError as error:
            reason = str(error).removeprefix(f"{name} ")
        is_one_by_one = export_format.one_text_at_a_time and self.trained.generates_text
        name_parts = [name, *(["one by one"] if is_one_by_one else []), *(["on the CPU"] if is_on_gpu else [])]
        return Variant(name=", ".join(name_parts), patch={"format": name, "batched": not is_one_by_one}, reason=reason)

    def _ask(self, variant: Variant, is_first: bool, seconds: float, folder: Path) -> dict[str, Any]:
        target_tokens = self.trained.plan.config.task.max_target_length
        question = {
            "run": str(self.trained.run.root),
            "gpu": self.gpu,
            "batched": True,
            "rows": self.rows,
            "new_tokens": min(NEW_TOKENS, target_tokens) if self.trained.head == ENCODER_DECODER else NEW_TOKENS,
            **variant.patch,
            "scored": is_first,
        }
        if format_name := question.get("format"):
            question["folder"] = str(self._export(format_name, question, seconds, folder))
        limit_seconds = min(seconds, _COMPILER_SECONDS) if question.get("compiled") else seconds
        try:
            return dict(ask("run_model", question, timeout_seconds=limit_seconds, sees_gpus=True))
        except WorkerFailed as failure:
            if not (question.get("compiled") and not failure.reason):
                raise
            raise WorkerFailed(f"not worth it here: compiling and one round {failure}") from None

    def _export(self, name: str, question: dict[str, Any], seconds: float, new_folder: Path) -> Path:
        """Return the folder of the run's export if its certificate is good, else of one written to `new_folder`."""
        if name not in self._exports:
            folder = self.trained.run.exports / name
            if certificates(self.trained.run).get(name, {}).get("is_good") is not True:
                folder = new_folder / name
                folder.mkdir(exist_ok=True)
                self.notify(f"exporting to {name}")
                ask("write_format", {**question, "write": str(folder)}, timeout_seconds=seconds, sees_gpus=True)
            self._exports[name] = folder
        return self._exports[name]

    def _row(self, variant: Variant, expected: list[str]) -> dict[str, Any]:
        """Return the figures of a variant: medians over its turns, but latencies over the inputs of all turns."""
        row: dict[str, Any] = {"name": variant.name, "reason": variant.reason, "turns": len(variant.answers)}
        if not variant.answers:
            return row
        first_answer, latencies = variant.answers[0], sorted(_all(variant, "latencies"))
        matches = [reference == output for reference, output in zip(expected, first_answer["predictions"], strict=True)]
        figure_names = ("tokens_per_second", "peak_memory_bytes", "compile_seconds")
        # Without an export, the weights on the disk are those of the run, also for bf16 and compiled layers.
        weight_folders = {self.trained.folder, *filter(None, [self.trained.base])}
        weight_bytes = sum(path.stat().st_size for folder in weight_folders for path in folder.glob("*.safetensors"))
        export_folder = self._exports.get(variant.patch.get("format", ""))
        return {
            **row,
            "samples_per_second": variant.median("samples_per_second"),
            "samples_per_second_spread": variant.spread_share("samples_per_second"),
            **{name: variant.median(name) for name in figure_names},
            "first_token_seconds": median(_all(variant, "first_token_seconds") or [0.0]) or None,
            "latency_seconds_50": median(latencies),
            "latency_seconds_95": quantiles([*latencies, latencies[-1]], n=20)[-1],
            "disk_bytes": (folder_size(export_folder).bytes if export_folder else 0) or weight_bytes,
            "loss": first_answer.get("loss"),
            "scores": first_answer.get("scores", {}),
            "same_predictions": sum(matches) / len(matches),
        }


def _lack_of_bf16(hardware: Hardware, card: Gpu | None) -> str:
    """Return why the GPU, or the CPU if `card` is None, does not support bf16; empty if it does."""
    if card is not None:
        return "" if card.abilities and card.abilities.bf16 else "this GPU does not support bf16"
    return "" if hardware.cpu_flags & BF16_FLAGS else "this CPU only emulates bf16"


def _all(variant: Variant, name: str) -> list[float]:
    return [value for answer in variant.answers for value in answer[name]]


def table(rows: list[dict[str, Any]], *, writes: bool) -> list[list[str]]:
    """Return the cells of a table: titles, then the rows that have figures. `writes`: the model generates text."""
    score_names = list(next((row["scores"] for row in rows if row["turns"]), {}))[:2]
    first_token_column: turns.Columns = {"first token": lambda row: _ms(row["first_token_seconds"])} if writes else {}
    columns: turns.Columns = {
        "": lambda row: row["name"],
        "samples/s": lambda row: turns.with_spread(row["samples_per_second"], row["samples_per_second_spread"]),
        "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
        **first_token_column,
        "50 %": lambda row: _ms(row["latency_seconds_50"]),
        "95 %": lambda row: _ms(row["latency_seconds_95"]),
        "memory": lambda row: format_bytes(row["peak_memory_bytes"]),
        "on disk": lambda row: format_bytes(row["disk_bytes"]),
        "loss": lambda row: f"{row['loss']:.4f}",
        **{display_name(name): partial(_score, name) for name in score_names},
        "same": lambda row: f"{row['same_predictions']:.0%}",
    }
    return turns.table_of(columns, rows)


def speed_lines(result: Mapping[str, Any], width: int) -> list[str]:
    """Return the lines of the table and of the meaning of its columns, from the JSON of `bench RUN`."""
    rows, writes = result["variants"], result["writes"]
    if not any(row["turns"] for row in rows):
        return []
    row_words = "rows per round" + (f" (up to {NEW_TOKENS} new tokens each)" if writes else "")
    cells = table(rows, writes=writes)
    lines = [f"{result['run']}: {result['rows']} held-out {row_words}, {turns.turns_words(result['rounds'])}"]
    lines += table_lines(cells, width, right=cells[0][1:])
    lines.append(f"50 %, 95 %: percentiles of a row's latency; same: predictions as `{ONE_BY_ONE}`")
    lines.append(f"variants run `{BATCHED}` with a merged adapter, unless their names say otherwise")
    if target := result["inference_samples_per_second"]:
        lines.append(f"target {target['words']}: {target['verdict']}")
    return lines


def _score(name: str, row: Mapping[str, Any]) -> str:
    return f"{row['scores'][name]:.3f}"


def _ms(seconds: float | None) -> str:
    return "--" if seconds is None else f"{format_number(1e3 * seconds)} ms"


def keep_speed(
    trained: TrainedModel, rows: Sequence[Mapping[str, Any]], row_count: int, notify: turns.Notify
) -> Target | None:
    """Write the measured samples per second in batches, if any, to the journal of the run.

    Returns the run's target for this speed, or None. `notify` gets the reason if the speed cannot be saved, for example
    while another process trains the run."""
    run = trained.run
    state = read_run(run)
    rows_per_second = next((row["samples_per_second"] for row in rows if row["name"] == BATCHED and row["turns"]), None)
    if rows_per_second is not None:
        event = InferenceMeasured(step=state.step, samples_per_second=rows_per_second, rows=row_count)
        state.apply(event)
        try:
            with RunLock(run.lock), JournalWriter(run.journal) as journal:
                journal.append(event)
                if journal.failure_reason:
                    raise FolderError(journal.failure_reason)
        except FolderError as error:
            notify(f"the speed was not saved with the run: {error}")
    return next((target for target in targets_of(state) if target.setting == "inference_samples_per_second"), None)


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """Return sentences about variants without figures, with their reasons, and about when compiling pays off."""
    sentences = turns.reasons(rows)
    rows_by_name = {row["name"]: row for row in rows if row["turns"]}
    compiled_row, batched_row = rows_by_name.get(COMPILED), rows_by_name.get(BATCHED)
    if compiled_row and batched_row:
        plain_seconds, compiled_seconds = (1 / row["samples_per_second"] for row in (batched_row, compiled_row))
        compile_seconds = compiled_row["compile_seconds"]
        payoff = "which never pays off here"
        if compiled_seconds < plain_seconds:
            payoff = f"which pays off after {compile_seconds / (plain_seconds - compiled_seconds):,.0f} rows"
        sentences.append(f"{COMPILED}: the compiler took {format_seconds(compile_seconds)} at each start, {payoff}")
    return sentences
