"""Commands that measure on this machine: inference of a trained model, training, and the fastest settings."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tui_trainer.cli.application import (
    AsJson,
    ConfigOptions,
    GpuName,
    RunReference,
    app,
    lock_named_run,
    option,
    print_result,
    shares_options,
    trained_model,
)
from tui_trainer.errors import EXIT_FAILED, EXIT_STOPPED, InputError
from tui_trainer.terminal.standard_files import print_to_stderr

_DEFAULT_COMMAND = "run"
_WIDTH = 200
_START_SECONDS = 120.0

Rounds = Annotated[int, typer.Option(min=1, max=20, help="How many times each variant is measured.")]
Only = Annotated[
    list[str] | None, option("--only", "NAME", "Measure only variants whose name contains NAME; may be repeated.")
]


class _ModelByDefault(TyperGroup):
    """Command group in which `bench my-run` means `bench run my-run`. Names of its commands take precedence."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not args or (args[0] not in self.commands and args[0] not in ("--help", "-h")):
            args = [_DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=_ModelByDefault,
    help="Measure speed on this machine: `bench RUN` a trained model, `bench train [CONFIG]` each training option.",
)
app.add_typer(bench, name="bench")


@bench.command(_DEFAULT_COMMAND)
def bench_model(
    run: RunReference = "last",
    rows: Annotated[int, typer.Option(min=1, max=100_000, help="Held-out rows per round.")] = 32,
    rounds: Rounds = 2,
    only: Only = None,
    gpu: GpuName = None,
    as_json: AsJson = False,
) -> None:
    """Measure a trained model: rows one by one, in batches, with beams, quantized, compiled, exported."""
    from tui_trainer.measure.inference import InferenceBench, keep_speed, notes, speed_lines

    trained = trained_model(lock_named_run(run, "bench"))
    figures, cut_short = InferenceBench(trained, rows, rounds, gpu, print_to_stderr, only or ()).measure()
    target = keep_speed(trained, figures, rows, print_to_stderr)
    result = {
        "run": trained.run.name, "rows": rows, "rounds": rounds, "writes": trained.generates_text,
        "cut_short": cut_short,
        "inference_samples_per_second": target and {
            "requested": target.requested, "measured": target.measured, "met": target.met,
            "words": target.words, "verdict": target.verdict,
        },
        "variants": figures,
    }  # fmt: skip
    print_result(result, [*speed_lines(result, _WIDTH), *notes(figures)], as_json)
    _report_end(figures, cut_short)


@bench.command("train")
@shares_options
def bench_train(
    config: ConfigOptions,
    steps: Annotated[
        int | None,
        typer.Option(min=3, max=100_000, help="Steps measured per round. [default: 12, fewer if time is short]"),
    ] = None,
    rounds: Rounds = 2,
    only: Only = None,
    whole: Annotated[
        bool, option("--whole", None, "Train the whole run once per variant, for times and final losses (takes hours).")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0.2, max=1440, help="Time limit, in minutes. [default: 9]")
    ] = None,
    gpu: GpuName = None,
    as_json: AsJson = False,
) -> None:
    """Measure training: a baseline, its options added one by one, each option alone, and other batch sizes."""
    from tui_trainer.hardware.probe import probe
    from tui_trainer.measure import starting
    from tui_trainer.measure.steps import figures_of
    from tui_trainer.measure.training import BASELINE, MINUTES, TrainingBench, doubts, reasons_of, trial_lines

    if whole and (steps or minutes):
        name = "--steps" if steps else "--minutes"
        raise InputError(f"--whole cannot be combined with {name}", hint="remove one of them")
    seconds = math.inf if whole else 60.0 * (minutes or MINUTES)
    # Words that name parts of the start must not select variants of a step.
    step_variants = [word for word in only or () if not any(word in name for name in starting.NAMES)]
    names = step_variants or ([BASELINE] if only else ())
    training = TrainingBench(config.request, steps, rounds, gpu, print_to_stderr, names, seconds, whole)
    variants, cut_short = training.measure()
    starts = starting.measure_start(config.request, rounds, gpu, _START_SECONDS, print_to_stderr, only or ())
    variant_figures = figures_of(variants, training.whole_tokens)
    result = {
        "steps": training.steps, "batch": training.baseline_rows, "rounds": training.rounds, "whole": whole,
        "cut_short": cut_short, "doubts": doubts(variant_figures, probe().usable_cores), "variants": variant_figures,
        "starts": starting.figures(starts),
    }  # fmt: skip
    print_result(result, [*trial_lines(result, _WIDTH), *reasons_of(result)], as_json)
    _report_end(variant_figures, cut_short)


@app.command()
@shares_options
def tune(
    config: ConfigOptions,
    gpu: GpuName = None,
    minutes: Annotated[float, typer.Option(min=0.2, max=1440, help="Time limit, in minutes.")] = 5,
    effective: Annotated[
        bool, typer.Option("--effective", help="Find how many rows per step make full use of this machine.")
    ] = False,
    write: Annotated[Path | None, option("--write", "OUT.toml", "Write the config with the best settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the largest micro-batch and the fastest settings on this machine, at the same effective batch and loss."""
    from tui_trainer.config.toml_files import refuse_existing
    from tui_trainer.measure.tuning import EffectiveBatches, Tuning
    from tui_trainer.runs.json_fields import replace_non_finite

    if write is not None:
        refuse_existing(write, "--write")
    search_class: type[EffectiveBatches] | type[Tuning] = EffectiveBatches if effective else Tuning
    search = search_class(request=config.request, gpu=gpu, seconds=60 * minutes, notify=print_to_stderr).find()
    result = replace_non_finite(search.as_json())
    print(json.dumps(result) if as_json else "\n".join([*search.lines(_WIDTH), search.sentence]))
    if write is not None:
        from tui_trainer.config.save import to_toml
        from tui_trainer.config.toml_files import write_new
        from tui_trainer.launching.open_run import load_config
        from tui_trainer.measure.micro_batches import with_settings

        write_new(write, to_toml(load_config(with_settings(config.request, search.patch), gpu=gpu)))
        print_to_stderr(f"wrote {write}; next: tui-trainer plan {write}")
    _report_end(result["sizes" if effective else "variants"], search.cut_short)


def _report_end(figures: list[dict[str, Any]], cut_short: str) -> None:
    """Report why measuring was cut short. Exit with an error code if it was interrupted or measured nothing."""
    if cut_short:
        print_to_stderr(f"{cut_short}: the results so far are shown")
    if cut_short == "interrupted":
        raise typer.Exit(EXIT_STOPPED)
    if not any(row["turns"] for row in figures):
        raise typer.Exit(EXIT_FAILED)
