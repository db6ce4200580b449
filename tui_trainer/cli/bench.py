"""The commands that measure on this machine: a model at work, training itself, and which settings are fastest."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tui_trainer.cli.application import (
    AsJson,
    Asked,
    GpuName,
    RunReference,
    app,
    option,
    print_json,
    run_in_use,
    shares_options,
    trained_model,
)
from tui_trainer.errors import EXIT_FAILED, EXIT_STOPPED, InputError
from tui_trainer.terminal.standard_files import tell

_MODEL = "run"
_WIDTH = 200
_START_SECONDS = 120.0

Rounds = Annotated[int, typer.Option(min=1, max=20, help="Turns of each variant, one after another.")]
Only = Annotated[list[str] | None, option("--only", "NAME", "Only variants with this in their names; may be repeated.")]


class _ModelByDefault(TyperGroup):
    """`bench my-run` measures a run: the first word is a command or belongs to that."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not args or (args[0] not in self.commands and args[0] not in ("--help", "-h")):
            args = [_MODEL, *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=_ModelByDefault,
    help="Measure on this machine: `bench RUN` a trained model, `bench train [CONFIG]` training, switch by switch.",
)
app.add_typer(bench, name="bench")


@bench.command(_MODEL)
def bench_model(
    run: RunReference = "last",
    rows: Annotated[int, typer.Option(min=1, max=100_000, help="Held-out rows that are asked in each turn.")] = 32,
    rounds: Rounds = 2,
    only: Only = None,
    gpu: GpuName = None,
    as_json: AsJson = False,
) -> None:
    """A trained model at work: one by one, in batches, with beams, in fewer bits, compiled, exported."""
    from tui_trainer.bench.inference import (
        BATCHED,
        NEW_TOKENS,
        ONE_BY_ONE,
        InferenceBench,
        inference_target,
        notes,
        table,
    )

    trained = trained_model(run_in_use(run, "bench"))
    asked = InferenceBench(trained, rows, rounds, gpu, tell, only or ())
    found = asked.measure()
    figures = asked.figures(found)
    target = inference_target(trained, figures)
    if as_json:
        about = {"run": trained.run.name, "rows": rows, "cut_short": found.cut_short}
        verdict = target and {"requested": target.requested, "measured": target.measured, "met": target.met}
        print_json({**about, "inference_samples_per_second": verdict, "variants": figures})
    elif any(row["turns"] for row in figures):
        texts = f"texts, {NEW_TOKENS} new tokens at most," if trained.writes else "rows"
        print(f"{trained.run.name}: {rows} held-out {texts} in each turn, {_medians(rounds)} in fresh processes")
        _print_table(table(figures, writes=trained.writes))
        print(f"50 % and 95 %: seconds of one row alone; same: predictions equal to those of `{ONE_BY_ONE}`")
        print(f"all but `{ONE_BY_ONE}` run as `{BATCHED}`, an adapter merged, where nothing else is said")
        if target:
            print(f"target {target.words}: {target.verdict}")
    _end(figures, found.cut_short, [] if as_json else notes(figures))


@bench.command("train")
@shares_options
def bench_train(
    asked: Asked,
    steps: Annotated[
        int | None,
        typer.Option(min=3, max=100_000, help="Steps measured in each turn. [default: 12, or what there is time for]"),
    ] = None,
    rounds: Rounds = 2,
    only: Only = None,
    whole: Annotated[
        bool, option("--whole", None, "Train the whole run with each variant, once: hours, for times and final losses.")
    ] = False,
    gpu: GpuName = None,
    as_json: AsJson = False,
) -> None:
    """Training: a plain baseline, each switch alone, other batch sizes, and the switches one upon the other."""
    from tui_trainer.bench import starting
    from tui_trainer.bench.training import BASELINE, TrainingBench, doubts, figures, table
    from tui_trainer.hardware.probe import probe

    if whole and steps:
        raise InputError("--whole takes all steps of the run", hint="leave out --steps or --whole")
    # Names of what comes before the first step are none of what changes a step.
    of_steps = [one for one in only or () if not any(one in name for name in starting.NAMES)]
    trial = TrainingBench(
        asked.request, steps, rounds, gpu, tell, of_steps or ([BASELINE] if only else ()), whole=whole
    )
    found = trial.measure()
    began = starting.measure_start(asked.request, rounds, gpu, _START_SECONDS, tell, only or ())
    starts = starting.figures(began)
    rows = figures(found, trial.whole_tokens)
    doubtful = doubts(rows, probe().usable_cores)
    if as_json:
        about = {"steps": trial.steps, "batch": trial.batch, "cut_short": found.cut_short, "doubts": doubtful}
        print_json({**about, "variants": rows, "starts": starts})
    elif rows[0]["turns"]:
        taken = "all steps of the run" if whole else f"{trial.steps} steps in each turn"
        print(f"{taken}, {_medians(trial.rounds)} in fresh processes")
        print(f"baseline: {trial.batch} padded rows in one pass, fp32, plain attention, batches made between the steps")
        _print_table(table(rows))
        after = "the run" if whole else "equal steps"
        print(f"speed-up: tokens a second; loss: held out, after {after}; + : with all that stand above it with a +")
        print("whole run: all steps of the run that was asked for, at that rate")
        print("\n".join(doubtful), end="\n" if doubtful else "")
        if any(row["turns"] for row in starts):
            print()
            _print_table(starting.table(starts))
    reasons = [f"{row['name']}: {row['reason']}" for row in (*rows, *starts) if row["reason"]]
    _end(rows, found.cut_short, [] if as_json else reasons)


def _medians(rounds: int) -> str:
    return "one turn" if rounds == 1 else f"medians of up to {rounds} turns"


def _print_table(rows: list[list[str]]) -> None:
    from tui_trainer.lines.plan_and_events import table_lines

    print("\n".join(table_lines(rows, _WIDTH, right=rows[0][1:])))


@app.command()
@shares_options
def tune(
    asked: Asked,
    gpu: GpuName = None,
    minutes: Annotated[float, typer.Option(min=0.2, max=1440, help="The most that it takes.")] = 5,
    effective: Annotated[
        bool,
        typer.Option("--effective", help="Measure how many rows behind a step make this machine full instead."),
    ] = False,
    write: Annotated[Path | None, option("--write", "OUT.toml", "Write the config with what was found.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the largest micro-batch and the fastest settings here, at the same effective batch and loss."""
    from tui_trainer.bench.effective_batches import EffectiveBatches, MeasuredBatches, sizes_table
    from tui_trainer.bench.fastest_settings import Tuned, Tuning, measured_table, micro_batch_line, notes_of
    from tui_trainer.config.toml_files import refuse_existing
    from tui_trainer.runs.json_fields import finite

    if write is not None:
        refuse_existing(write, "--write")
    search = EffectiveBatches if effective else Tuning
    found: MeasuredBatches | Tuned = search(request=asked.request, gpu=gpu, seconds=60 * minutes, told=tell).find()
    result = finite(found.as_json())
    if as_json:
        print(json.dumps(result))
    elif isinstance(found, MeasuredBatches):
        if found.measured:
            _print_table(sizes_table(result))
            print("busy: of the card, or of the threads of a CPU; memory: peak, the largest pass of the run among it")
        print(found.sentence)
    else:
        lines = [micro_batch_line(found.tries), *measured_table(result, _WIDTH), *notes_of(result), found.sentence]
        print("\n".join(lines))
    if write is not None:
        from tui_trainer.config.save import to_toml
        from tui_trainer.config.toml_files import write_new
        from tui_trainer.launching.micro_batches import with_settings
        from tui_trainer.launching.open_run import load_config

        write_new(write, to_toml(load_config(with_settings(asked.request, found.patch), gpu=gpu)))
        tell(f"wrote {write}: try tui-trainer plan {write}")
    _end(result["sizes" if effective else "variants"], found.cut_short)


def _end(figures: list[dict[str, Any]], cut_short: str, notes: Sequence[str] = ()) -> None:
    """With the exit code of what was measured."""
    for note in notes:
        print(note)
    if cut_short:
        tell(f"{cut_short}: that is what was measured until then")
    if cut_short == "interrupted":
        raise typer.Exit(EXIT_STOPPED)
    if not any(row["turns"] for row in figures):
        raise typer.Exit(EXIT_FAILED)
