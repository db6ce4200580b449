"""The command `train`, with or without screens."""

from typing import TYPE_CHECKING

import typer

from tui_trainer.cli.application import ConfigOptions, Detach, GpuName, ScreenOptions, app, detach_run, shares_options
from tui_trainer.terminal.standard_files import show_progress

if TYPE_CHECKING:
    from tui_trainer.config.load import LoadedConfig
    from tui_trainer.hardware.diagnosis import GpuChoice
    from tui_trainer.launching.open_run import OpenRun
    from tui_trainer.planning.plan import Plan


@app.command()
@shares_options
def train(config: ConfigOptions, screen: ScreenOptions, gpu: GpuName = None, detach: Detach = False) -> None:
    """Open the screens, or train at once with --no-ui. This is the default command."""
    if detach:
        from tui_trainer.launching.detached import open_detached

        loaded = config.load(gpu)
        plan = _plan(loaded, gpu)
        run = open_detached(loaded, plan, gpu=gpu)
        if not screen.as_json:
            print("\n".join(_greeting(run, plan, loaded)), flush=True)
        detach_run(run.folder, as_json=screen.as_json, gpu=gpu)
        return
    if screen.no_ui:
        raise typer.Exit(_train(config.load(gpu), gpu, screen.as_json))
    screen.refuse_json_on_screens()
    if any(vars(config).values()):
        # Errors must be printed before the screens take the terminal.
        config.load(gpu)
    raise screen.show_screens(lambda: config.request, gpu=gpu)


def _plan(loaded: "LoadedConfig", gpu: "GpuChoice") -> "Plan":
    from tui_trainer.launching.prepare import estimated_plan

    return estimated_plan(loaded, show_progress, gpu=gpu)


def _greeting(run: "OpenRun", plan: "Plan", loaded: "LoadedConfig") -> list[str]:
    from tui_trainer.lines.plan_and_events import start_lines

    greeting = [*start_lines(run.folder.name, str(run.folder.root), plan), *loaded.notes]
    if not run.is_in_index:
        warning = "could not write the list of runs, so `resume` and `stop` will need the path of this run"
        greeting.append(f"{warning}. Set TUI_TRAINER_HOME to a writable folder")
    return greeting


def _train(loaded: "LoadedConfig", gpu: "GpuChoice", as_json: bool) -> int:
    from tui_trainer.launching.open_run import open_new
    from tui_trainer.lines import headless

    plan = _plan(loaded, gpu)
    run = open_new(loaded, plan, gpu=gpu)
    return headless.execute_and_print(run, as_json=as_json, greeting=_greeting(run, plan, loaded))
