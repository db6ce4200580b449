"""Commands on existing runs, such as list, compare, rename, resume and stop, and on runs of a cluster."""

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tui_trainer.cli.application import (
    AsciiOnly,
    AsJson,
    ConfigOptions,
    Detach,
    GpuName,
    NoMouse,
    NoUi,
    RunReference,
    ScreenOptions,
    app,
    detach_run,
    option,
    print_json,
    print_result,
    run_named,
    shares_options,
)
from tui_trainer.errors import EXIT_DONE, ConfigError, FolderError, InputError
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.terminal.standard_files import print_to_stderr

if TYPE_CHECKING:
    from tui_trainer.runs.folder import RunFolder

_COUNT_LIMITS = {"min": 1, "max": 4096}


@app.command()
@shares_options
def resume(
    screen: ScreenOptions,
    run: RunReference = "last",
    gpu: GpuName = None,
    processes: Annotated[
        int | None, option("--processes", "N", "Processes per node. If not given: unchanged.", **_COUNT_LIMITS)
    ] = None,
    nodes: Annotated[
        int | None, option("--nodes", "N", "Number of nodes. If not given: unchanged.", **_COUNT_LIMITS)
    ] = None,
    detach: Detach = False,
) -> None:
    """Resume a run from its latest complete checkpoint.

    Without --gpu, the run continues on the GPU that it started on, if that GPU is available."""
    from tui_trainer.launching.open_run import reopen_run
    from tui_trainer.runs.overview import overview
    from tui_trainer.runs.slurm import Allocation

    folder, allocation = run_named(run), Allocation.of_this_process()
    if allocation and allocation.node_count > 1:
        nodes = allocation.node_count
    if overview(folder).status == "finished" and folder.model.exists():
        from tui_trainer.exporting.trained_model import final_model

        print_to_stderr(f"{folder.name} is finished; its model is in {final_model(folder)}")
        raise typer.Exit(EXIT_DONE)
    if detach:
        detach_run(folder, as_json=screen.as_json, gpu=gpu, processes=processes, nodes=nodes)
        return
    screen.refuse_json_on_screens()
    if screen.no_ui and allocation and allocation.node_rank:
        from tui_trainer.lines.headless import join_run

        raise typer.Exit(join_run(folder, allocation.node_rank))
    resumed_run = reopen_run(folder, gpu=gpu, processes=processes, nodes=nodes)
    if screen.no_ui:
        from tui_trainer.lines.headless import execute_and_print

        greeting = resumed_run.loaded.notes if resumed_run.loaded else ()
        raise typer.Exit(execute_and_print(resumed_run, as_json=screen.as_json, greeting=greeting))
    raise screen.show_screens(gpu=gpu, resumed=resumed_run)


@app.command()
@shares_options
def attach(
    screen: ScreenOptions,
    run: RunReference = "last",
    view: Annotated[bool, typer.Option("--view", help="Read-only: no key of the screens changes a run.")] = False,
) -> None:
    """Watch a run in another process, or look at one that has ended."""
    watch(run_named(run), screen, view=view)


def watch(folder: "RunFolder", screen: ScreenOptions, *, view: bool = False) -> None:
    """Show a run, and end the command when the user leaves. Without screens, the exit code is the run's."""
    if screen.no_ui:
        from tui_trainer.lines import headless

        raise typer.Exit(headless.watch(folder, as_json=screen.as_json))
    screen.refuse_json_on_screens()
    raise screen.show_screens(attach_to=folder, view=view)


@app.command()
def runs(as_json: AsJson = False) -> None:
    """List the runs on this disk, newest first."""
    from dataclasses import asdict
    from datetime import UTC, datetime

    from tui_trainer.lines import plan_and_events as lines
    from tui_trainer.runs.overview import Overviews
    from tui_trainer.runs.registry import list_problem

    overviews = Overviews()
    for run in overviews.read():
        overviews.measure(run.path)
    # Listed runs whose folder is gone are not shown.
    existing_runs = [run for run in overviews.read() if run.status != "gone"]
    if not existing_runs and (problem := list_problem()):
        raise FolderError(problem)
    if as_json:
        print_json([asdict(run) for run in existing_runs])
    elif not existing_runs:
        print("no runs yet; `tui-trainer --no-ui` starts one")
    else:
        print("\n".join(lines.run_lines(existing_runs, _terminal_width(), datetime.now(UTC))))


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN...", help="Two to six runs.")], as_json: AsJson = False
) -> None:
    """Compare runs: losses, scores, speed, memory, and the settings that differ."""
    from dataclasses import asdict

    from tui_trainer.lines.comparison_lines import comparison_lines
    from tui_trainer.runs.comparison import compare

    comparison = compare([run_named(name) for name in runs])
    warning_lines = [one_line(comparison.warning), ""] if comparison.warning else []
    lines = [*warning_lines, *comparison_lines(comparison, _terminal_width())]
    print_result(asdict(comparison), lines, as_json)


@app.command()
def rename(run: RunReference, name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")]) -> None:
    """Rename a run. It must not be active."""
    from tui_trainer.runs import delete_and_rename

    folder = run_named(run)
    _refuse_link(run, folder, "renamed")
    delete_and_rename.refuse_if_queued(folder)
    if problem := delete_and_rename.rename(folder.root, name):
        print_to_stderr(str(problem))
    print(f"{one_line(folder.name)} is now called {name}; its folder is {one_line(str(folder.root.with_name(name)))}")


@app.command()
def label(
    run: RunReference,
    tags: Annotated[str | None, option("--tags", '"A B"', "Tags of the run; an empty text removes them.")] = None,
    note: Annotated[str | None, option("--note", "TEXT", "A one-line note; an empty text removes it.")] = None,
) -> None:
    """Set the tags and the note of a run, even while it trains; without options, print them."""
    from tui_trainer.runs import labels

    folder = run_named(run)
    labels_of_run = labels.labels_of(folder)
    if tags is not None or note is not None:
        new_tags = None if tags is None else labels.parsed_tags(tags)
        new_note = None if note is None else labels.parsed_note(note)
        labels_of_run = labels.label(folder.root, tags=new_tags, note=new_note)
    words = " ".join(filter(None, (labels.tag_words(labels_of_run.tags), labels_of_run.note))) or "no tags and no note"
    print(f"{one_line(folder.name)}: {words}")


@app.command()
def delete(
    run: RunReference, yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False
) -> None:
    """Delete a run: its journal, checkpoints and model. It must not be active. Asks first."""
    from tui_trainer.runs import delete_and_rename
    from tui_trainer.units import format_bytes

    root = _find_deletable_folder(run)
    if not yes:
        size = format_bytes(delete_and_rename.bytes_to_free(root))
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InputError(f"{root} would be deleted, which frees {size}", hint="--yes deletes it without asking")
        if not typer.confirm(f"delete {one_line(str(root))} and free {size}?", err=True):
            return
    for line in delete_and_rename.delete(root).words(root.name):
        print(line)


def _find_deletable_folder(reference: str) -> Path:
    """Return the folder of a run to delete, or a listed folder in which no run can be opened. Raises FolderError."""
    from tui_trainer.runs.overview import Overviews

    try:
        folder = run_named(reference)
    except FolderError:
        paths = [it.path for it in Overviews().read() if not it.is_run and reference in (it.name, str(it.path))]
        if len(paths) != 1:
            raise
        return paths[0]
    _refuse_link(reference, folder, "deleted")
    return folder.root


def _refuse_link(reference: str, folder: "RunFolder", verb: str) -> None:
    """Raise FolderError if the user named a link to the run, because the link or the run may be meant."""
    from tui_trainer.files.local_paths import absolute_path
    from tui_trainer.runs.registry import listed_roots

    path = absolute_path(reference)
    is_its_name = reference == folder.name and folder.root in listed_roots()
    if not is_its_name and path.is_symlink() and path.resolve() == folder.root:
        hint = f"`{shlex.join(['rm', str(path)])}` removes the link; the run is in {one_line(str(folder.root), 300)}"
        raise FolderError(f"this is a link to a run, and nothing was {verb}", where=one_line(str(path)), hint=hint)


@app.command()
def stop(run: RunReference = "last") -> None:
    """Ask a run to save and stop."""
    _ask(run, "stop")


@app.command()
def ask(
    run: RunReference,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="pause, resume, save, evaluate or stop.")],
) -> None:
    """Ask an active run to pause, resume, save, evaluate or stop."""
    _ask(run, action)


def _ask(reference: str, action: str) -> None:
    from tui_trainer.runs import controls, slurm
    from tui_trainer.runs.lock import lock_hint, read_lock_owner
    from tui_trainer.runs.overview import overview

    if action not in controls.CONTROL_ACTIONS:
        raise InputError(f"{action!r} is not a valid action", hint="actions: " + ", ".join(controls.CONTROL_ACTIONS))
    folder = run_named(reference)
    job = slurm.active_job(folder) if read_lock_owner(folder.lock) is None else ""
    if job and action == "stop":
        slurm.cancel(job)
        print(f"cancelled job {job} of {one_line(folder.name)}, which had not started")
        return
    if job:
        hint = f"`tui-trainer stop {shell_word(folder.name)}` removes it from the queue"
        raise InputError(f"job {job} of {folder.name} has not started", hint=hint)
    if read_lock_owner(folder.lock) is None:
        is_finished = overview(folder).status == "finished"
        command, verb = ("generate", "tries") if is_finished else ("resume", "resumes")
        hint = f"`tui-trainer {command} {shell_word(folder.name)}` {verb} it"
        raise InputError(f"{folder.name} is {'finished' if is_finished else 'not running'}", hint=hint)
    holder = read_lock_owner(folder.lock)
    controls.request(folder.control, action)
    print(f"asked {one_line(folder.name)} to {action}")
    if holder and (hint := lock_hint(holder, folder.lock, "")):
        print_to_stderr(f"{folder.name} is in use by {holder}; {hint}")


def _terminal_width() -> int:
    return shutil.get_terminal_size((1000, 24)).columns


_EXAMPLE = """Submit a run to Slurm, and watch it.

Example: tui-trainer submit my.toml --time 8:00:00 --partition gpu --gpus 4 --sbatch=--account=physics

Shows the batch script and asks before it is submitted. Before the time limit the run saves a checkpoint, is queued
again and resumes exactly. output.runs_dir and the data must be on a disk that all nodes see. `attach RUN`
watches the run from anywhere, `stop RUN` stops it, or removes it from the queue."""


@app.command(help=_EXAMPLE)
@shares_options
def submit(
    config: ConfigOptions,
    time: Annotated[
        str, option("--time", "TIME", "Time limit of one job, such as 90 (minutes), 8:00:00 or 2-12 (days-hours).")
    ] = "",
    partition: Annotated[
        str, option("--partition", "NAME", "The partition. If not given: the cluster's default.")
    ] = "",
    nodes: Annotated[
        int | None, option("--nodes", "N", "Short for --set distributed.nodes=N.", min=1, max=4096)
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, max=64, metavar="N", help="GPUs per node.")] = 0,
    cpus: Annotated[int, typer.Option(min=0, max=4096, metavar="N", help="CPU cores per node.")] = 0,
    sbatch: Annotated[
        list[str] | None, option("--sbatch", "OPTION", "An extra option for sbatch; may be repeated.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the script without writing or submitting it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    no_ui: NoUi = False,
    ascii_only: AsciiOnly = False,
    no_mouse: NoMouse = False,
) -> None:
    from tui_trainer.launching.submit import Resources, make_folder, planned_root, script_text, submit_run
    from tui_trainer.runs import slurm

    node_settings = [f"distributed.nodes={nodes}"] if nodes else []
    loaded = replace(config, assignments=[*(config.assignments or ()), *node_settings]).load()
    node_count, options = loaded.config.distributed.nodes, tuple(sbatch or ())
    resources = Resources(
        nodes=node_count, gpus_per_node=gpus, cpus_per_node=cpus, time=time, partition=partition, options=options
    )
    if problems := resources.problems():
        raise ConfigError(problems)
    root = planned_root(loaded)
    script = script_text(root, resources)
    print(script, end="", flush=True)
    if dry_run:
        return
    should_ask = slurm.is_here() and not yes
    if should_ask and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError("cannot ask for confirmation without a terminal", hint="add --yes to submit the script")
    folder = make_folder(loaded, root, script)
    manual_hint = f"submit it with `sbatch {folder.script}`"
    if not slurm.is_here():
        print_to_stderr(f"sbatch is not available on this machine; {manual_hint} on a machine that has it")
        return
    if should_ask and not typer.confirm("submit this script?", err=True):
        print_to_stderr(manual_hint)
        return
    job = submit_run(folder)
    print(f"submitted {folder.name} as job {job}; all nodes must be able to access {folder.root}", flush=True)
    if no_ui or sys.stdout.isatty():
        watch(folder, ScreenOptions(no_ui=no_ui, ascii_only=ascii_only, no_mouse=no_mouse))


@app.command()
def join(
    run: RunReference,
    node_rank: Annotated[int, option("--node-rank", "K", "The rank of this node: 1 for the second.", min=1, max=4095)],
) -> None:
    """Join a run that was started on the first node, as another node. RUN is its folder on a shared disk."""
    from tui_trainer.lines import headless

    try:
        folder = run_named(run)
    except FolderError as error:
        hint = "start the run on the first node first; output.runs_dir must be on a disk that all nodes see"
        raise InputError(f"{error.problems[0].message}: {one_line(run, 200)}", hint=hint) from None
    raise typer.Exit(headless.join_run(folder, node_rank))
