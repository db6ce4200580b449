"""Commands that use a trained model: on a text, in a conversation, for evaluation, and for the rows of a file."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tui_trainer.cli.application import (
    AsJson,
    GpuName,
    RunReference,
    app,
    lock_named_run,
    option,
    print_result,
    trained_model,
)
from tui_trainer.errors import EXIT_FAILED, EXIT_STOPPED, DataError, FolderError, InputError
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.writing import TEMPERATURE, Sampling
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.terminal.standard_files import print_to_stderr, show_progress, write_progress
from tui_trainer.units import format_rate

if TYPE_CHECKING:
    from tui_trainer.exporting.trained_model import TrainedModel

Temperature = Annotated[float, typer.Option(min=0, max=10, help="0: greedy decoding.")]
Beams = Annotated[int, typer.Option(min=1, max=64, help="Number of beams; the likeliest text is taken.")]
NewTokens = Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of tokens to generate.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same text.")]
AgainstBase = Annotated[str, option("--against", "base", "base: also show the base model's answer.")]
ComparedModel = Annotated[
    str, option("--against", "MODEL", "Model to compare with: base, a run, a folder, or none.", show_default=True)
]


@app.command()
def generate(
    run: RunReference = "last",
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="If not given, prompts are read line by line.", show_default=False),
    ] = None,
    max_new_tokens: NewTokens = 200,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0, max=10, help="0: greedy decoding.", show_default=f"{TEMPERATURE}; 0 with beams or --against"
        ),
    ] = None,
    beams: Beams = 1,
    seed: Seed = 0,
    against: AgainstBase = "",
    as_json: AsJson = False,
) -> None:
    """Try a trained model on a text: it continues the text, or gives the answer of its task, such as a label."""
    _refuse_other_models(against)
    folder = lock_named_run(run, "generate")
    from tui_trainer.exporting.trained_model import source_words, weights_folder_of

    # Errors must be reported before torch is loaded, which takes seconds.
    source = source_words(weights_folder_of(folder))
    trained = trained_model(folder, unfinished=True)
    if temperature is None:
        temperature = TEMPERATURE if beams == 1 and not against else 0.0
    if trained.task.scores_answers:
        raise InputError(f"{folder.name} is a reward model, which writes no text", hint=_trying_hint(trained))
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, num_beams=beams)
    _refuse_useless_beams(trained, sampling)
    if against and not trained.generates_text:
        raise InputError(f"{folder.name} was trained for {trained.task.name} and generates no text to compare")
    base = _base_folder(trained) if against else None
    from tui_trainer.exporting.generate import Writer
    from tui_trainer.lines.conversation import answer_lines, print_answer, print_answers

    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        writers = {"base": Writer(folder, base=base)} if base else {}
        writers["tuned"] = Writer(folder)
    print(f"{folder.name}: {source}" + (f", {beams} beams" if beams > 1 else ""), file=sys.stderr)
    answer = partial(print_answer, writers["tuned"], sampling=sampling)
    if against or as_json:
        answer = partial(print_answers, writers, sampling=sampling, as_json=as_json)
    if prompt is None:
        answer_lines(answer, continues=writers["tuned"].continues)
    else:
        answer(prompt)


def _refuse_other_models(against: str) -> None:
    if against not in ("", "base"):
        raise InputError("--against only accepts base", hint="`tui-trainer evaluate` compares other models")


def _base_folder(trained: "TrainedModel") -> Path:
    """Return the folder of the model before training. Raises InputError if it is not on this machine."""
    base, reason = trained.base_model()
    if base is None:
        raise InputError(reason or f"{trained.run.name} was trained from scratch, so it has no base model")
    return base


def _trying_hint(trained: "TrainedModel") -> str:
    """Return a hint with the command that tries a model which holds no conversation."""
    name = shell_word(trained.run.name)
    if trained.task.scores_answers:
        return f"`tui-trainer predict {name} --data FILE --out FILE` scores rows with a prompt and an answer"
    return f"`tui-trainer generate {name}` tries the model on one text at a time"


def _refuse_useless_beams(trained: "TrainedModel", sampling: Sampling) -> None:
    """Raise InputError if beams are requested with sampling, or for a model that generates no text."""
    if sampling.num_beams == 1:
        return
    if sampling.temperature:
        raise InputError("--beams cannot be combined with --temperature above 0", hint="remove one of them")
    if not trained.generates_text:
        message = f"{trained.run.name} was trained for {trained.task.name} and generates no text"
        raise InputError(f"{message}, so --beams has no effect", hint="remove --beams")


@app.command()
def chat(
    run: RunReference = "last",
    system: Annotated[str, option("--system", "TEXT", "The system prompt.")] = "",
    against: AgainstBase = "",
    max_new_tokens: NewTokens = 400,
    temperature: Temperature = TEMPERATURE,
    seed: Seed = 0,
    gpu: GpuName = None,
) -> None:
    """Chat with a trained model, or continue texts with a model that was not trained on chats."""
    _refuse_other_models(against)
    folder = lock_named_run(run, "chat")
    from tui_trainer.exporting.trained_model import source_words, weights_folder_of

    # Errors must be reported before torch is loaded, which takes seconds.
    source = source_words(weights_folder_of(folder))
    trained = trained_model(folder, unfinished=True)
    if trained.head != CAUSAL:
        message = f"{folder.name} was trained for {trained.task.name} and cannot hold a conversation"
        raise InputError(message, hint=_trying_hint(trained))
    base = _base_folder(trained) if against else None
    from tui_trainer.exporting.chat_session import ChatSession
    from tui_trainer.exporting.generate import Writer
    from tui_trainer.exporting.predicting import inference_device
    from tui_trainer.lines.conversation import hold_conversation

    device = inference_device(gpu)
    writers = {"base": Writer(folder, device=device, base=base)} if base else {}
    writers["tuned"] = Writer(folder, device=device)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    print(f"{folder.name}: {source}; /help lists commands, Ctrl+C stops an answer, Ctrl+D quits", file=sys.stderr)
    show, notify = partial(print, end="", flush=True), partial(print, file=sys.stderr, flush=True)
    hold_conversation(ChatSession(writers, sampling, system, show=show, notify=notify))


@app.command()
def evaluate(
    models: Annotated[
        list[str], typer.Argument(metavar="RUN|FOLDER...", help="Runs, or folders with models of the same kind.")
    ],
    data: Annotated[str, option("--data", "FILE", "Use this file instead of the run's held-out rows.")] = "",
    against: ComparedModel = "base",
    rows: Annotated[
        int, typer.Option(min=0, help="Maximum number of rows, evenly spaced; 0: as many as the run evaluated.")
    ] = 0,
    changed: Annotated[
        int, typer.Option(min=0, max=1000, help="How many rows to show; the rows with the largest changes come first.")
    ] = 5,
    gpu: GpuName = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate trained models on held-out rows or a file: loss and scores, compared with the base model."""
    from tui_trainer.exporting.evaluating import Evaluator
    from tui_trainer.exporting.predicting import inference_device
    from tui_trainer.lines.evaluation import evaluation_lines

    trained = _lock_and_load(models, against, "evaluate")
    evaluator = Evaluator(trained, inference_device(gpu), write_progress if as_json else show_progress)
    with redirect_stdout(sys.stderr):  # libraries print warnings, but with --json standard output must be JSON only
        result = evaluator.evaluate(models, file=data, against=against, rows=rows, changed=changed)
    for note in result.notes:
        print_to_stderr(note)
    print_result(asdict(result), evaluation_lines(asdict(result)), as_json)


def _lock_and_load(models: Sequence[str], against: str, command: str) -> "TrainedModel":
    """Lock the runs of all models until the command ends, and return the model of the first run."""
    from tui_trainer.exporting.evaluating import run_of

    for name in {*models, against} - {"base", "none", ""}:
        # A folder may belong to no run. Models that cannot be used are refused later.
        with suppress(FolderError):
            lock_named_run(str(run_of(name).root), command)
    return trained_model(run_of(models[0]))


@app.command()
def gate(
    models: Annotated[
        list[str],
        typer.Argument(metavar="RUN|FOLDER...", help="A run, optionally followed by other runs or folders of exports."),
    ],
    suite: Annotated[str, option("--suite", "FILE.jsonl", "File of prompts to answer; default: 40 general ones.")] = "",
    against: ComparedModel = "base",
    allow_broken: Annotated[
        int, typer.Option("--allow-broken", min=0, help="Rows that may be right before and wrong now.")
    ] = 0,
    allow_missing: Annotated[
        int, typer.Option("--allow-missing", min=0, help="Rows to learn that may be wrong now.")
    ] = 0,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum tokens of an answer.")] = 128,
    gpu: GpuName = None,
    as_json: AsJson = False,
) -> None:
    """Check that a trained model has learnt what it should and broken nothing: its answers beside the base model's."""
    from tui_trainer.exporting.gate import Gate
    from tui_trainer.exporting.predicting import inference_device
    from tui_trainer.lines.gate import gate_lines

    trained = _lock_and_load(models, against, "gate")
    judge = Gate(trained, inference_device(gpu), write_progress if as_json else show_progress)
    limits = {"max_new_tokens": max_new_tokens, "allow_broken": allow_broken, "allow_missing": allow_missing}
    with redirect_stdout(sys.stderr):  # libraries print warnings, but with --json standard output must be JSON only
        result = judge.judge(models, suite=suite, against=against, **limits)
    for note in result.notes:
        print_to_stderr(note)
    print_result({**asdict(result), "passed": result.is_passed}, gate_lines(asdict(result)), as_json)
    if not result.is_passed:
        raise typer.Exit(EXIT_FAILED)


_SECONDS_BETWEEN_LINES = 30.0


@app.command()
def predict(
    run: RunReference,
    data: Annotated[str, option("--data", "FILE", "Data to predict on, in any format that training accepts.")],
    out: Annotated[Path, option("--out", "FILE", "Output file (JSON lines): each row with its prediction.")],
    batch_size: Annotated[str, typer.Option("--batch-size", metavar="N", help="Rows per batch, or auto.")] = "auto",
    max_new_tokens: Annotated[
        int | None,
        option(
            "--max-new-tokens",
            None,
            "Maximum new tokens for each row; default: task.max_target_length for seq2seq, else 200.",
            min=1,
            max=100_000,
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, max=10, help="0: greedy decoding.")] = 0,
    beams: Beams = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="The same seed gives the same texts.")] = 0,
    column: Annotated[
        list[str] | None, option("--column", "NAME", "Column of the text; repeat the option for a pair of texts.")
    ] = None,
    field: Annotated[
        str, option("--field", "NAME", "Field name for the prediction.", show_default=True)
    ] = "prediction",
    on_bad_rows: Annotated[
        Literal["stop", "skip"], typer.Option("--on-bad-rows", help="What to do with invalid rows.")
    ] = "stop",
    overwrite: Annotated[
        bool, option("--overwrite", None, "Replace the output file, whether complete or not.")
    ] = False,
    gpu: GpuName = None,
    as_json: AsJson = False,
) -> None:
    """Predict every row of a file with a trained model. If interrupted, rerun the same command to continue."""
    if column and len(column) > 2:
        raise InputError("--column can be given at most twice, for the two texts of a pair")
    batch_rows = _parse_batch_size(batch_size)
    folder = lock_named_run(run, "predict")
    from tui_trainer.exporting.predicting import PredictionRequest, inference_device, predict_file
    from tui_trainer.files.local_paths import absolute_path
    from tui_trainer.units import format_seconds

    trained = trained_model(folder)
    config = trained.plan.config
    limit = config.task.max_target_length if "max_target_length" in trained.task.used_settings else 200
    sampling = Sampling(max_new_tokens=max_new_tokens or limit, temperature=temperature, seed=seed, num_beams=beams)
    _refuse_useless_beams(trained, sampling)
    request = PredictionRequest(
        data=data,
        out=absolute_path(str(out)),
        sampling=sampling,
        batch_size=batch_rows,
        columns=tuple(column or ()),
        field=field,
        skips_bad_rows=on_bad_rows == "skip",
        overwrite=overwrite,
    )
    try:
        with redirect_stdout(sys.stderr):
            result = predict_file(trained, request, lambda: inference_device(gpu), _choose_progress(as_json))
    except DataError as error:
        problems = (replace(it, hint=it.hint.replace("data.text_column", "--column")) for it in error.problems)
        raise DataError(problems) from None
    except KeyboardInterrupt:
        show_progress("", 1, 1, "")
        print_to_stderr(f"interrupted; rerun the same command to continue {out}")
        raise typer.Exit(EXIT_STOPPED) from None
    for note in result.notes:
        print_to_stderr(note)
    row_rate = (result.rows - result.rows_before) / max(result.seconds, 1e-9)
    if as_json:
        print(json.dumps({"out": str(out), "rows": result.rows, "rows_before": result.rows_before,
                          "seconds": round(result.seconds, 3), "rows_per_second": round(row_rate, 2)}))  # fmt: skip
        return
    earlier = f", {result.rows_before:,} of them in an earlier call" if result.rows_before else ""
    timing = f"{format_seconds(result.seconds)}, {format_rate(row_rate, 'rows')}"
    print(f"{one_line(str(out))}: {result.rows:,} rows{earlier}, {timing}")


def _choose_progress(as_json: bool) -> Callable[[str, float, float | None, str], None]:
    """Return the function that shows progress: as JSON, in place on a terminal, or as a line each half minute."""
    if as_json:
        return write_progress
    if sys.stderr is not None and sys.stderr.isatty():
        return show_progress
    last_line_at = monotonic()

    def print_sometimes(action: str, done: float, total: float | None, unit: str) -> None:
        nonlocal last_line_at
        if monotonic() - last_line_at >= _SECONDS_BETWEEN_LINES:
            last_line_at = monotonic()
            print_to_stderr(f"{action} {done:,.0f} of {total:,.0f} {unit}" if total else f"{action} {done:,.0f} {unit}")

    return print_sometimes


def _parse_batch_size(word: str) -> int:
    """Return the number of rows for `--batch-size`; 0 for auto. Raises InputError for another word."""
    if word == "auto":
        return 0
    if not (word.isascii() and word.isdigit() and 0 < int(word) <= 65_536):
        raise InputError(f"--batch-size must be auto or a number of rows up to 65,536, not {word[:40]!r}")
    return int(word)
