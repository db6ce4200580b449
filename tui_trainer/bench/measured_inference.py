"""One way to run a trained model, and a model written in another format: in a worker, which has loaded nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tui_trainer.exporting.contract import find_format
from tui_trainer.exporting.trained_model import TrainedModel, load_tokenizer
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.models.writing import Sampling
from tui_trainer.runs.folder import RunFolder
from tui_trainer.worker.questions import Report

if TYPE_CHECKING:
    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.exporting.predicting import Predictor

# Rows that are asked one by one for a latency, and for the time to the first token; tokens of a text to go on with.
_LATENCY_ROWS, _FIRST_TOKEN_ROWS, _PROMPT_TOKENS, _ROWS_AT_A_TIME = 20, 8, 32, 8


def write(question: dict[str, Any], _: Report) -> None:
    """`question` has run, format, write (a folder)."""
    find_format(question["format"]).write(_trained(question), Path(question["write"]), lambda *_: None)


def measure(question: dict[str, Any], _: Report) -> dict[str, Any]:
    """Seconds, bytes, loss and scores; `question` has run, gpu, batched, rows, new_tokens, scored, and where they are
    not the usual ones format and folder, dtype, adapter, compiled, beams."""
    from tui_trainer.exporting.held_out import prepared_data
    from tui_trainer.training.compiled import compiler
    from tui_trainer.training.recorder import peak_memory_bytes

    trained = _trained(question)
    data = prepared_data(trained)
    predictor = _predictor(trained, question)
    written = _count_written(predictor.model)
    contents = _contents(trained, data, question["rows"])
    with compiler():
        compile_seconds = _compile(predictor, contents) if question.get("compiled") else None
        predictor.predict(contents[:1])
        latencies = [_seconds(predictor, [content]) for content in contents[:_LATENCY_ROWS]]
        predictor.predict(contents[:2] if question["batched"] else contents[:1])
        written.clear()
        started = perf_counter()
        groups = [contents] if question["batched"] else [[content] for content in contents]
        predictions = [one for group in groups for one in predictor.predict(group)]
        seconds = perf_counter() - started
        tokens = sum(written) if trained.writes else sum(_read_tokens(trained, contents, predictor))
        first = _first_token_seconds(predictor, contents) if trained.writes else []
        # Before the loss, whose passes have other shapes.
        peak = peak_memory_bytes(next(predictor.model.parameters()).device)
        scores = _scores(trained, data, predictor.model, question["rows"]) if question["scored"] else {}
    return {
        "samples_per_second": len(contents) / seconds,
        "tokens_per_second": tokens / seconds,
        "latencies": latencies,
        "first_token_seconds": first,
        "compile_seconds": compile_seconds,
        "peak_memory_bytes": peak,
        "predictions": [trained.task.prediction_words(one) for one in predictions],
        **scores,
    }


def _trained(question: dict[str, Any]) -> TrainedModel:
    return TrainedModel.of(RunFolder.open(Path(question["run"])))


def _predictor(trained: TrainedModel, question: dict[str, Any]) -> Predictor:
    import torch

    from tui_trainer.exporting.predicting import Predictor, inference_device, load_predictor

    new_tokens, beams = question["new_tokens"], question.get("beams", 1)
    sampling = Sampling(max_new_tokens=new_tokens, temperature=0, seed=0, num_beams=beams)
    gpu: GpuChoice = question["gpu"]
    if question.get("format"):
        model = find_format(question["format"]).load(trained, Path(question["folder"]))
        return Predictor(trained.task, trained.plan.config, model, load_tokenizer(trained), sampling)
    predictor = load_predictor(trained, inference_device(gpu), sampling)
    if question.get("adapter"):
        device = predictor.model.device
        predictor.model = trained.load(dtype=predictor.model.dtype, merge=False).to(device)
        trained.task.set_generation(trained.plan.config, predictor.model, predictor.tokenizer)
    if dtype := question.get("dtype"):
        predictor.model = predictor.model.to(getattr(torch, dtype))
    return predictor


def _contents(trained: TrainedModel, data: PreparedData, count: int) -> list[Any]:
    """What the model is asked: held-out rows as text, of what it goes on with the beginning; again where they are few.

    Other formats of one model get the same.
    """
    from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced

    config, tokenizer = trained.plan.config, load_tokenizer(trained)
    reader = trained.task.input_reader(config, tokenizer)
    rows = Rows(data.eval_path or data.train_path)
    texts = []
    for at in evenly_spaced(len(rows), count):
        tokens = rows.example(at).tokens
        kept = tokens[:_PROMPT_TOKENS] if trained.head == "causal_lm" else tokens
        text = str(tokenizer.decode(kept.tolist(), skip_special_tokens=True))
        texts.append(text.removeprefix(config.task.source_prefix).strip() or "a")
    return [reader.of_text(texts[at % len(texts)]) for at in range(count)]


def _count_written(model: Any) -> list[int]:
    """How many tokens each text has that the model writes from now on, its end token counted in."""
    import torch

    found: list[int] = []
    plain = getattr(model, "generate", None)
    if plain is None:
        return found

    def generate(*, input_ids: Any, **settings: Any) -> Any:
        made = plain(input_ids=input_ids, **settings)
        ids_BT = made if isinstance(made, torch.Tensor) else made.sequences
        before = 1 if model.config.is_encoder_decoder else input_ids.shape[1]
        ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        ending = set(ends if isinstance(ends, list) else [ends])
        for row in ids_BT[:, before:].tolist():
            found.append(next((at + 1 for at, token in enumerate(row) if token in ending), len(row)))
        return made

    model.generate = generate
    return found


def _read_tokens(trained: TrainedModel, contents: list[Any], predictor: Predictor) -> list[int]:
    config, sampling = trained.plan.config, predictor.sampling
    return [
        len(row) for row in trained.task.encode_inputs(config, predictor.model, predictor.tokenizer, contents, sampling)
    ]


def _compile(predictor: Predictor, contents: list[Any]) -> float:
    """Compile each layer, for any number of rows and tokens; the seconds that this took. Raises what it raises, and
    RuntimeError where nothing was compiled."""
    from tui_trainer.training.compiled import decoder_layers, graphs_made, require_graphs

    for layer in decoder_layers(predictor.model) or [predictor.model]:
        layer.compile(dynamic=True)
    started, before = perf_counter(), graphs_made()
    predictor.predict(contents[:1])
    predictor.predict(contents)
    require_graphs(before)
    return perf_counter() - started


def _seconds(predictor: Predictor, contents: list[Any]) -> float:
    started = perf_counter()
    predictor.predict(contents)
    return perf_counter() - started


def _first_token_seconds(predictor: Predictor, contents: list[Any]) -> list[float]:
    asked = predictor.sampling
    predictor.sampling = replace(asked, max_new_tokens=1)
    found = [_seconds(predictor, [content]) for content in contents[:_FIRST_TOKEN_ROWS]]
    predictor.sampling = asked
    return found


def _scores(trained: TrainedModel, data: PreparedData, model: Any, most_rows: int) -> dict[str, Any]:
    from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced
    from tui_trainer.exporting.held_out import batches, layout_of, scored

    rows, layout = Rows(data.eval_path or data.train_path), layout_of(trained, model, _ROWS_AT_A_TIME)
    loss, scores = scored(trained, data, model, batches(rows, evenly_spaced(len(rows), most_rows), layout))
    return {"loss": loss, "scores": scores}
