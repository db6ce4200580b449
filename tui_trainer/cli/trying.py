"""Commands that try a trained model: a text, a conversation, or the rows of a file beside other models."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from tui_trainer.cli.application import (
    AsJson,
    GpuName,
    RunReference,
    app,
    option,
    print_json,
    run_in_use,
    trained_model,
)
from tui_trainer.errors import FolderError, InputError
from tui_trainer.models.heads import CAUSAL
from tui_trainer.safe_text import one_line
from tui_trainer.standard_files import show_progress, tell

if TYPE_CHECKING:
    from tui_trainer.exporting.evaluating import Evaluation, Measured

Temperature = Annotated[float, typer.Option(min=0, max=10, help="0 takes the likeliest token.")]
NewTokens = Annotated[int, typer.Option(min=1, max=100_000, help="Tokens to write.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed writes the same text.")]


@app.command()
def generate(
    run: RunReference = "last",
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Without it, lines are read one by one.", show_default=False)
    ] = None,
    max_new_tokens: NewTokens = 200,
    temperature: Temperature = 0.8,
    seed: Seed = 0,
) -> None:
    """Try a trained model: it continues a text, or answers one as its task does."""
    folder = run_in_use(run, "generate")
    from tui_trainer.exporting.trained_model import source_words, weights_of

    # Before torch is loaded, which takes seconds.
    source = source_words(weights_of(folder))
    from tui_trainer.conversation import continue_once, converse
    from tui_trainer.exporting.generate import Sampling, Writer

    writer = Writer(folder)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    print(f"{folder.name}: {source}", file=sys.stderr)
    for note in writer.notes:
        tell(f"{folder.name}: {note}")
    if prompt is not None:
        continue_once(writer, prompt, sampling)
        return
    converse(writer, sampling)


@app.command()
def chat(
    run: RunReference = "last",
    system: Annotated[str, option("--system", "TEXT", "What the conversation begins with.")] = "",
    against: Annotated[str, option("--against", "base", "The base model answers first.")] = "",
    max_new_tokens: NewTokens = 400,
    temperature: Temperature = 0.8,
    seed: Seed = 0,
    gpu: GpuName = None,
) -> None:
    """Hold a conversation with a trained model that answers, or write a text with one that continues."""
    if against not in ("", "base"):
        raise InputError("--against takes base", hint="`tui-trainer evaluate` compares other models")
    folder = run_in_use(run, "chat")
    from tui_trainer.exporting.trained_model import source_words, weights_of

    # Before torch is loaded, which takes seconds.
    source = source_words(weights_of(folder))
    trained = trained_model(folder, unfinished=True)
    if trained.head != CAUSAL:
        hint = f"`tui-trainer generate {folder.name}` asks it one text at a time"
        raise InputError(f"{folder.name} learnt {trained.task.name}, which holds no conversation", hint=hint)
    base, reason = trained.base_model() if against else (None, "")
    if against and base is None:
        raise InputError(reason or f"{folder.name} was trained from scratch: it has no base model")
    from tui_trainer.conversation import hold
    from tui_trainer.exporting.conversation import Conversation
    from tui_trainer.exporting.generate import Sampling, Writer
    from tui_trainer.exporting.predicting import inference_device

    device = inference_device(gpu)
    writers = {"base": Writer(folder, device=device, base=base)} if base else {}
    writers["tuned"] = Writer(folder, device=device)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    print(f"{folder.name}: {source}; /help lists commands, Ctrl+C ends an answer, Ctrl+D leaves", file=sys.stderr)
    hold(
        Conversation(
            writers,
            sampling,
            system,
            show=lambda piece: print(piece, end="", flush=True),
            tell=lambda words: print(words, file=sys.stderr, flush=True),
        )
    )


@app.command()
def evaluate(
    models: Annotated[
        list[str], typer.Argument(metavar="RUN|FOLDER...", help="Runs, or folders with models of the same kind.")
    ],
    data: Annotated[str, option("--data", "FILE", "Instead of the held-out rows of the run.")] = "",
    against: Annotated[
        str, option("--against", "MODEL", "base, a run, a folder, or none.", show_default=True)
    ] = "base",
    rows: Annotated[int, typer.Option(min=0, help="At most so many rows, evenly spaced; 0: as in the run.")] = 0,
    changed: Annotated[int, typer.Option(min=0, max=1000, help="How many of the rows that changed most.")] = 5,
    gpu: GpuName = None,
    as_json: AsJson = False,
) -> None:
    """Measure trained models on held-out rows, or on a file: loss and scores beside those of the base model."""
    from dataclasses import asdict

    from tui_trainer.exporting.evaluating import Evaluator, run_of
    from tui_trainer.exporting.predicting import inference_device

    for name in {*models, against} - {"base", "none", ""}:
        # What cannot be evaluated is refused below; a folder may also be no run's.
        with suppress(FolderError):
            run_in_use(str(run_of(name).root), "evaluate")
    trained = trained_model(run_of(models[0]))
    evaluator = Evaluator(trained, inference_device(gpu), show_progress)
    found = evaluator.evaluate(models, file=data, against=against, rows=rows, changed=changed)
    for note in found.notes:
        tell(note)
    if as_json:
        print_json(asdict(found))
    else:
        print("\n".join(_lines(found)))


def _lines(found: "Evaluation") -> list[str]:
    from tui_trainer.lines import table_lines
    from tui_trainer.runs.score_words import plain

    names = list(found.models[0].scores)
    table = [["", "loss", *map(plain, names)]]

    def add(label: str, values: list[float], sign: str = "") -> None:
        table.append([label, *(f"{value:{sign}.4f}" for value in values)])

    def values(one: "Measured") -> list[float]:
        return [one.loss, *(one.scores[name] for name in names)]

    if found.reference:
        add(one_line(found.reference.name, 40), values(found.reference))
    for one in found.models:
        add(one_line(one.name, 40), values(one))
        if found.reference:
            pairs = zip(values(one), values(found.reference), strict=True)
            add("  difference", [after - before for after, before in pairs], "+")
    lines = [f"{found.rows:,} rows: {one_line(found.data)}", *table_lines(table, 160, right=table[0][1:])]
    if found.changed and found.reference:
        names_of = f"{one_line(found.reference.name, 40)} to {one_line(found.models[0].name, 40)}"
        lines += ["", f"changed most from {names_of}:"]
        for row in found.changed:
            losses = f"loss {row.loss_before:.3f} -> {row.loss_after:.3f}"
            lines.append(f"  row {row.number}: {losses}  {one_line(row.text.strip(), 100)}")
            lines.append(f"    before {one_line(row.before.strip(), 150)}")
            lines.append(f"    after  {one_line(row.after.strip(), 150)}")
    return lines
