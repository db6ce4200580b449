"""Training: with screens, or without."""

from typing import TYPE_CHECKING

import typer

from tui_trainer.cli.application import Asked, Detach, GpuName, Shown, app, let_go, shares_options
from tui_trainer.terminal.standard_files import show_progress

if TYPE_CHECKING:
    from tui_trainer.config.load import LoadedConfig
    from tui_trainer.hardware.diagnosis import GpuChoice
    from tui_trainer.launching.open_run import OpenRun
    from tui_trainer.planning.plan import Plan


@app.command()
@shares_options
def train(asked: Asked, shown: Shown, gpu: GpuName = None, detach: Detach = False) -> None:
    """Open the screens, or train at once with --no-ui. This is the default command."""
    if detach:
        from tui_trainer.launching.detached import make_run

        loaded = asked.load(gpu)
        plan = _plan(loaded, gpu)
        run = make_run(loaded, plan, gpu=gpu)
        if not shown.as_json:
            print("\n".join(_greeting(run, plan, loaded)), flush=True)
        let_go(run.folder, as_json=shown.as_json, gpu=gpu)
        return
    if shown.no_ui:
        raise typer.Exit(_train(asked.load(gpu), gpu, shown.as_json))
    shown.refuse_json_on_screens()
    if any(vars(asked).values()):
        # What is wrong with it is said before the terminal is taken.
        asked.load(gpu)
    raise shown.on_screens(lambda: asked.request, gpu=gpu)


def _plan(loaded: "LoadedConfig", gpu: "GpuChoice") -> "Plan":
    from tui_trainer.launching.prepare import estimated_plan

    return estimated_plan(loaded, show_progress, gpu=gpu)


def _greeting(run: "OpenRun", plan: "Plan", loaded: "LoadedConfig") -> list[str]:
    from tui_trainer.lines.plan_and_events import start_lines

    greeting = [*start_lines(run.folder.name, str(run.folder.root), plan), *loaded.notes]
    if not run.remembered:
        unlisted = "could not write the list of runs, so `resume` and `stop` will need the path of this run"
        greeting.append(f"{unlisted}. Set TUI_TRAINER_HOME to a writable folder")
    return greeting


def _train(loaded: "LoadedConfig", gpu: "GpuChoice", as_json: bool) -> int:
    from tui_trainer.launching.open_run import open_new
    from tui_trainer.lines import headless

    plan = _plan(loaded, gpu)
    run = open_new(loaded, plan, gpu=gpu)
    return headless.follow(run, as_json=as_json, greeting=_greeting(run, plan, loaded))
