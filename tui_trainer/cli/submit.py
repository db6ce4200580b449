"""Runs on other machines than this one: as a job of Slurm, and as one node of several."""

import sys
from dataclasses import replace
from typing import Annotated

import typer

from tui_trainer.cli.application import (
    AsciiOnly,
    Asked,
    NoMouse,
    NoUi,
    RunReference,
    Shown,
    app,
    option,
    run_named,
    shares_options,
)
from tui_trainer.cli.runs import watch
from tui_trainer.errors import ConfigError, FolderError, InputError
from tui_trainer.safe_text import one_line
from tui_trainer.standard_files import tell

_EXAMPLE = """Submit a run to Slurm, and watch it.

Example: tui-trainer submit my.toml --time 8:00:00 --partition gpu --gpus 4 --sbatch=--account=physics

Shows the batch script and asks before it is submitted. Before the time limit the run saves a checkpoint, is queued
again and goes on exactly. output.runs_dir and the data must be on a disk that all nodes see. `attach RUN`
watches the run from anywhere, `stop RUN` stops it, or takes it out of the queue."""


@app.command(help=_EXAMPLE)
@shares_options
def submit(
    asked: Asked,
    time: Annotated[str, typer.Option(metavar="TIME", help="Limit of one start: 90 (minutes), 8:00:00, 2-12.")] = "",
    partition: Annotated[str, typer.Option(metavar="NAME", help="Where; else the cluster's default.")] = "",
    nodes: Annotated[
        int | None, option("--nodes", "N", "Short for --set distributed.nodes=N.", min=1, max=4096)
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, max=64, metavar="N", help="Cards on each node.")] = 0,
    cpus: Annotated[int, typer.Option(min=0, max=4096, metavar="N", help="Cores on each node.")] = 0,
    sbatch: Annotated[
        list[str] | None, option("--sbatch", "OPTION", "Another option of sbatch; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the script; write and submit nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    no_ui: NoUi = False,
    ascii_only: AsciiOnly = False,
    no_mouse: NoMouse = False,
) -> None:
    from tui_trainer.launching.submit import Resources, hand_over, make_folder, planned_root, script_text
    from tui_trainer.runs import slurm

    more = [f"distributed.nodes={nodes}"] if nodes else []
    loaded = replace(asked, assignments=[*(asked.assignments or ()), *more]).load()
    resources = Resources(
        nodes=loaded.config.distributed.nodes,
        gpus_per_node=gpus,
        cpus_per_node=cpus,
        time=time,
        partition=partition,
        options=tuple(sbatch or ()),
    )
    if problems := resources.problems():
        raise ConfigError(problems)
    root = planned_root(loaded)
    script = script_text(root, resources)
    print(script, end="", flush=True)
    if dry_run:
        return
    asks = slurm.is_here() and not yes
    if asks and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError("this script would be submitted", hint="--yes submits it without a question")
    folder = make_folder(loaded, root, script)
    by_hand = f"`sbatch {folder.script}` submits it"
    if not slurm.is_here():
        tell(f"sbatch is not on this machine: {by_hand} where it is")
        return
    if asks and not typer.confirm("submit it?", err=True):
        tell(by_hand)
        return
    job = hand_over(folder)
    print(f"job {job} is {folder.name}, in {folder.root}, which its nodes must see as well", flush=True)
    if no_ui or sys.stdout.isatty():
        watch(folder, Shown(no_ui=no_ui, ascii_only=ascii_only, no_mouse=no_mouse))


@app.command()
def join(
    run: RunReference,
    node_rank: Annotated[int, option("--node-rank", "K", "The number of this node, from 1.", min=1, max=4095)],
) -> None:
    """Take part, as another node, in a run that is begun on the first one. RUN is its folder on a shared disk."""
    from tui_trainer import headless

    try:
        folder = run_named(run)
    except FolderError as error:
        hint = "output.runs_dir must be on a disk that all nodes see; start the first node before"
        raise InputError(f"{error.problems[0].message}: {one_line(run, 200)}", hint=hint) from None
    raise typer.Exit(headless.join_run(folder, node_rank))
