"""The command line. Each command reads its arguments, asks one room, prints. Heavy imports stay inside the commands."""

from __future__ import annotations

import json
import shutil
import sys
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from tui_trainer.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, InputError, RunError
from tui_trainer.standard_files import open_standard_files, show_progress, silence_output, tell

if TYPE_CHECKING:
    from tui_trainer.config.load import LoadedConfig

_DEFAULT_COMMAND = "train"

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="A TOML file with settings.", show_default=False)
]
ProfileName = Annotated[
    str, typer.Option("--profile", metavar="NAME", help="The recipe to start from.", show_default=False)
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting; may be repeated.", show_default=False),
]
DataPath = Annotated[
    str, typer.Option("--data", metavar="PATH", help="Short for --set data.path=PATH.", show_default=False)
]
TaskName = Annotated[
    str, typer.Option("--task", metavar="NAME", help="Short for --set task.type=NAME.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
RunReference = Annotated[str, typer.Argument(metavar="RUN", help="A path, a name, the beginning of one, or last.")]


class _TrainByDefault(TyperGroup):
    """`tui-trainer my.toml` means `tui-trainer train my.toml`: the first word is a command or belongs to training."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not args or args[0] == "help":
            args = ["--help"]
        if args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            self._refuse_misspelt_command(args[0])
            args = [_DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def _refuse_misspelt_command(self, word: str) -> None:
        near = get_close_matches(word, self.commands, n=1)
        if near and not word.startswith("-") and not Path(word).exists():
            raise InputError(f"there is no command or file {word!r}", hint=f"did you mean the command {near[0]}?")


app = typer.Typer(
    cls=_TrainByDefault,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Fine-tune transformers from the terminal.\n\n"
        "tui-trainer --no-ui [CONFIG] [--profile NAME] [--data PATH] [--set KEY=VALUE]... [--json] trains; "
        "without CONFIG it trains the quickstart recipe, which needs no network and no GPU. "
        "`tui-trainer train --help` lists the options, `tui-trainer profiles` the names for --profile."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(metadata.version("tui-trainer"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


@app.command()
def train(
    config: ConfigFile = None,
    profile: ProfileName = "",
    assignments: Assignments = None,
    data: DataPath = "",
    task: TaskName = "",
    no_ui: Annotated[bool, typer.Option("--no-ui", help="Train here, and print lines.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train. This is what happens when no command is named."""
    if not no_ui:
        raise InputError("this version trains without a screen", hint="add --no-ui")
    from tui_trainer import headless, lines
    from tui_trainer.launching.prepare import estimated_plan
    from tui_trainer.launching.start import open_new

    loaded = _load(config, profile, assignments, data, task)
    plan = estimated_plan(loaded, show_progress)
    run = open_new(loaded)
    greeting = lines.start_lines(run.folder.name, str(run.folder.root), plan)
    if not run.remembered:
        greeting.append("the index of runs cannot be written: `resume` and `stop` need this run's path")
    raise typer.Exit(headless.follow(run, as_json=as_json, greeting=greeting))


@app.command()
def plan(
    config: ConfigFile = None,
    profile: ProfileName = "",
    assignments: Assignments = None,
    data: DataPath = "",
    task: TaskName = "",
    as_json: AsJson = False,
) -> None:
    """Show what would happen: batch, steps, memory, time, disk, each number with its reason."""
    from tui_trainer import lines
    from tui_trainer.launching.prepare import estimated_plan

    made = estimated_plan(_load(config, profile, assignments, data, task), show_progress)
    print(made.model_dump_json(indent=1) if as_json else "\n".join(lines.plan_lines(made)))


@app.command()
def resume(run: RunReference = "last", as_json: AsJson = False) -> None:
    """Go on with a run from its newest whole checkpoint."""
    from tui_trainer import headless
    from tui_trainer.launching.start import open_again
    from tui_trainer.runs.registry import find_run, summarise

    folder = find_run(run)
    if summarise(folder).status == "finished":
        tell(f"{folder.name} is finished; its model is in {folder.model}")
        raise typer.Exit(EXIT_DONE)
    raise typer.Exit(headless.follow(open_again(folder), as_json=as_json))


@app.command()
def runs(as_json: AsJson = False) -> None:
    """List the runs on this disk, the newest last."""
    from dataclasses import asdict

    from tui_trainer import lines
    from tui_trainer.runs.registry import known_runs, summarise

    summaries = list(map(summarise, known_runs()))
    if as_json:
        print(json.dumps([asdict(summary) for summary in summaries], default=str, indent=1))
    elif not summaries:
        print("no runs yet; `tui-trainer --no-ui` starts one")
    else:
        print("\n".join(lines.run_lines(summaries, shutil.get_terminal_size((1000, 24)).columns)))


@app.command()
def stop(run: RunReference = "last") -> None:
    """Ask a run to save and stop."""
    _ask(run, "stop")


@app.command()
def ask(
    run: RunReference,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="pause, resume, save, evaluate or stop.")],
) -> None:
    """Ask a run that is under way to pause, resume, save, evaluate or stop."""
    _ask(run, action)


@app.command()
def profiles(name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)] = "") -> None:
    """List the presets, those that match this machine marked; or show one."""
    from tui_trainer import lines
    from tui_trainer.config.profiles import all_profiles, find_profile
    from tui_trainer.hardware.probe import probe
    from tui_trainer.planning.hardware_match import why_it_matches

    recipes, hardware = all_profiles("recipes"), all_profiles("hardware")
    if name:
        found = hardware.get(name) or find_profile(name, "recipes")
        print(found.path.read_text(encoding="utf-8"), end="")
        return
    print("recipes (--profile NAME)")
    print("\n".join(lines.profile_line(profile, "") for profile in recipes.values()))
    print("\nhardware profiles (hardware_profile = NAME)")
    print("\n".join(lines.profile_line(p, why_it_matches(p, probe())) for p in hardware.values()))


@app.command()
def explain(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A setting, a table, or nothing for all.", show_default=False)
    ] = "",
    config: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="Show the values of this config.")
    ] = None,
    profile: ProfileName = "",
    assignments: Assignments = None,
    schema: Annotated[bool, typer.Option("--json-schema", help="Print the JSON Schema of config files.")] = False,
) -> None:
    """Say what a setting means, what it takes, and where its value comes from."""
    from tui_trainer.config.explain import describe, find_settings
    from tui_trainer.config.sections import Config

    if schema:
        print(json.dumps(Config.model_json_schema(), indent=1))
        return
    loaded = _load(config, profile, assignments, "", "")
    print("\n".join(line for setting in find_settings(key) for line in describe(setting, loaded)))


@app.command()
def generate(
    run: RunReference = "last",
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Without it, lines are read one by one.", show_default=False),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Tokens to write.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, max=10, help="0 takes the likeliest token.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed writes the same text.")] = 0,
) -> None:
    """Let a trained model continue a text."""
    from tui_trainer.runs.registry import find_run

    folder = find_run(run)
    from tui_trainer.exporting.weights import weights_of

    weights_of(folder)
    from tui_trainer.conversation import continue_once, converse
    from tui_trainer.exporting.generate import Sampling, Writer

    writer = Writer(folder)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    print(f"{folder.name}: {writer.source.name}", file=sys.stderr)
    if prompt is not None:
        continue_once(writer, prompt, sampling)
        return
    converse(writer, sampling)


def _ask(reference: str, action: str) -> None:
    from tui_trainer.runs import controls
    from tui_trainer.runs.lock import owner
    from tui_trainer.runs.registry import find_run, summarise

    if action not in controls.ACTIONS:
        raise InputError(f"{action!r} is no request", hint="requests: " + ", ".join(controls.ACTIONS))
    folder = find_run(reference)
    if owner(folder.lock) is None:
        finished = summarise(folder).status == "finished"
        hint = f"`tui-trainer {'generate' if finished else 'resume'} {folder.name}` " + (
            "tries it" if finished else "goes on"
        )
        raise InputError(f"{folder.name} is {'finished' if finished else 'not running'}", hint=hint)
    controls.request(folder.control, action)
    print(f"asked {folder.name} to {action}")


def _load(config: Path | None, profile: str, assignments: list[str] | None, data: str, task: str) -> LoadedConfig:
    from tui_trainer.config.load import Request
    from tui_trainer.launching.start import load_config

    shortcuts = {key: value for key, value in (("data.path", data), ("task.type", task)) if value}
    request = Request(config_file=config, profile=profile, assignments=tuple(assignments or ()), shortcuts=shortcuts)
    return load_config(request)


def main(arguments: list[str] | None = None) -> int:
    """The console script: exit code 0 done, 1 failed, 2 wrong input, 3 stopped early with a checkpoint."""
    open_standard_files()
    try:
        code = app(args=arguments, prog_name="tui-trainer", standalone_mode=False)
        return code if isinstance(code, int) else EXIT_DONE
    except InputError as error:
        for problem in error.problems:
            tell(str(problem))
        return EXIT_BAD_INPUT
    except RunError as error:
        tell(str(error))
        return EXIT_FAILED
    except typer.TyperException as error:
        tell(f"{error.format_message().rstrip('.')}; `tui-trainer --help` lists commands and options")
        return EXIT_BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        tell("interrupted")
        return EXIT_FAILED
    except BrokenPipeError:
        silence_output()
        return EXIT_DONE
