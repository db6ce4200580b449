"""The typer application, its help, and the options that several commands share."""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from itertools import chain
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tui_trainer.errors import ConfigError, InputError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.terminal.standard_files import print_to_stderr

if TYPE_CHECKING:
    from tui_trainer.config.load import LoadedConfig, Request
    from tui_trainer.exporting.trained_model import TrainedModel
    from tui_trainer.hardware.diagnosis import GpuChoice
    from tui_trainer.runs.folder import RunFolder

_DEFAULT_COMMAND = "train"
_SLOW_SECONDS = 5.0
_SECTIONS = {
    "Training": "train plan check preview rehearse tune profiles explain guide diagnose where import download install",
    "Runs": "runs attach ask stop resume doctor report compare label rename delete submit join track",
    "Trained models": "generate chat predict evaluate gate export check-serving bench publish",
}


def option(name: str, metavar: str | None, help: str, *, show_default: bool = False, **more: Any) -> Any:
    """Return a typer option. The help shows its default value only if `show_default` is set."""
    return typer.Option(name, metavar=metavar, help=help, show_default=show_default, **more)


def _gpu_choice(word: str) -> "GpuChoice":
    """Return the GPU for the argument of `--gpu`. Raises InputError for an unknown GPU or an invalid word."""
    if word in ("", "none"):
        return "none" if word else None
    if not (word.isascii() and word.isdigit()):
        raise InputError(f"--gpu must be the number of a GPU or none, not {one_line(word, 40)!r}")
    from tui_trainer.hardware.diagnosis import choose_gpu
    from tui_trainer.hardware.probe import probe

    choose_gpu(probe(), int(word))
    return int(word)


ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="A TOML file with settings.", show_default=False)
]
ProfileName = Annotated[str, option("--profile", "NAME", "The recipe to start from.")]
Assignments = Annotated[list[str] | None, option("--set", "KEY=VALUE", "Change one setting; may be repeated.")]
DataPath = Annotated[str | None, option("--data", "PATH", "Short for --set data.path=PATH.")]
ModelName = Annotated[
    str | None,
    option("--model", "NAME", "Short for --set model.model_name_or_path=NAME: a folder, a run or a name on the hub."),
]
TaskName = Annotated[str | None, option("--task", "NAME", "Short for --set task.type=NAME.")]
_GPU_HELP = "The number of a GPU, or none for the CPU. If not given: the GPU with the most free memory."
GpuName = Annotated[Any, option("--gpu", "N", _GPU_HELP, parser=_gpu_choice)]
Detach = Annotated[
    bool, typer.Option("--detach", help="Train in a background process without a terminal; `attach` shows the run.")
]
NoUi = Annotated[bool, typer.Option("--no-ui", help="Print lines instead of showing the screens.")]
AsciiOnly = Annotated[bool, typer.Option("--ascii", help="Draw the screens with plain ASCII.")]
NoMouse = Annotated[bool, typer.Option("--no-mouse", help="Do not use the mouse on the screens.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
RunReference = Annotated[
    str, typer.Argument(metavar="RUN", help="A run: its path, its name, the start of its name, or `last`.")
]


def _refuse_wrong_arguments(command: Any, args: list[str]) -> None:
    """Raise InputError for arguments that the parser would misunderstand.

    These are an option for one value that is given several times (the parser would keep the last value), and a setting
    or a recipe that is given without its option."""
    parser = command.make_parser(typer.Context(command, resilient_parsing=True))
    values_by_option, extra_words, parameters = parser.parse_args(list(args))
    if extra_words and any("--set" in parameter.opts for parameter in command.params):
        from tui_trainer.config.load import option_for

        extra_text = " ".join(one_line(word, 60) for word in extra_words)
        corrected_text = " ".join(filter(None, map(option_for, (values_by_option.get("config") or "", *extra_words))))
        if corrected_text or "config" in values_by_option:
            hint = "only one config can be given: put the settings into one file, or add them with --set KEY=VALUE"
            hint = f"write {corrected_text}" if corrected_text else hint
            raise InputError(f"unexpected argument{'s' * (len(extra_words) > 1)} {extra_text}", hint=hint)
    for parameter, count in Counter(parameters).items():
        is_repeatable = getattr(parameter, "multiple", True) or getattr(parameter, "is_flag", False)
        if count > 1 and not is_repeatable:
            raise InputError(f"{parameter.opts[0]} was given {count} times", hint="give it only once")


class _TrainByDefault(TyperGroup):
    """Group of all commands. `tui-trainer my.toml` means `tui-trainer train my.toml`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        if not args:
            args = [_DEFAULT_COMMAND]
        elif args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            word, similar_names = args[0], get_close_matches(args[0], self.commands, n=1)
            if similar_names and not word.startswith("-") and not Path(word).exists():
                hint = f"did you mean the command {similar_names[0]}?"
                raise InputError(f"{word!r} is neither a command nor a file", hint=hint)
            args = [_DEFAULT_COMMAND, *args]
        if command := self.commands.get(args[0]):
            _refuse_wrong_arguments(command, args[1:])
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """List the commands by section, in the order of their use. Each has the whole first sentence of its help."""
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(1_000)) for name in names.split()])


app = typer.Typer(
    cls=_TrainByDefault,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Fine-tune transformers from the terminal.\n\n"
        "tui-trainer [CONFIG] [--profile NAME] [--model FOLDER] [--data PATH] [--set KEY=VALUE]... opens the screens; "
        "with --no-ui it trains at once and prints lines. "
        "Without CONFIG it uses the quickstart recipe, which needs no network and no GPU. "
        "`tui-trainer train --help` lists the options, `tui-trainer profiles` the names for --profile, "
        "`tui-trainer guide` the guides."
    ),
)


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib import metadata

        print(metadata.version("tui-trainer"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


@dataclass(frozen=True)
class ConfigOptions:
    """Options that are common to all commands on a config."""

    config: ConfigFile = None
    profile: ProfileName = ""
    assignments: Assignments = None
    data: DataPath = None
    task: TaskName = None
    model: ModelName = None

    @property
    def request(self) -> "Request":
        from tui_trainer.config.load import Request

        keys = {"data.path": self.data, "task.type": self.task, "model.model_name_or_path": self.model}
        shortcuts = {key: value for key, value in keys.items() if value is not None}
        assignments = tuple(self.assignments or ())
        return Request(config_file=self.config, profile=self.profile, assignments=assignments, shortcuts=shortcuts)

    def load(self, gpu: "GpuChoice" = None) -> "LoadedConfig":
        """Load the config for this machine. Raises ConfigError with all problems.

        The task is detected from the data. If reading takes long, a message is printed."""
        from tui_trainer.launching.open_run import load_config

        model_text = f"the model {self.model} and " if self.model else ""
        inputs_text = f"{model_text}the first rows of {self.data or 'the data'}"
        message = f"still reading {inputs_text} after {_SLOW_SECONDS:.0f} seconds"
        timer = Timer(_SLOW_SECONDS, print_to_stderr, [message])
        timer.daemon = True
        timer.start()
        try:
            return load_config(self.request, gpu=gpu)
        finally:
            timer.cancel()

    def load_to_start(self, gpu: "GpuChoice" = None) -> "LoadedConfig":
        """Load the config of a run to be started. Raises ConfigError, also if the run's name is taken or not valid."""
        from tui_trainer.launching.open_run import name_problems

        loaded = self.load(gpu)
        if problems := name_problems(loaded):
            raise ConfigError(loaded.with_source(problem) for problem in problems)
        return loaded


@dataclass(frozen=True)
class ScreenOptions:
    """Options that are common to all commands that show a run."""

    no_ui: NoUi = False
    as_json: AsJson = False
    ascii_only: AsciiOnly = False
    no_mouse: NoMouse = False

    def refuse_json_on_screens(self) -> None:
        """Raise InputError if `--json` was given but the screens would be shown."""
        if self.as_json and not self.no_ui:
            raise InputError("--json prints the journal of a run instead of showing the screens", hint="add --no-ui")

    def show_screens(self, *request: Any, **more: Any) -> typer.Exit:
        """Show the screens until the user leaves them. Return typer's exit with the exit code."""
        from tui_trainer.ui.main import run_screens

        return typer.Exit(run_screens(*request, ascii_only=self.ascii_only, mouse=not self.no_mouse, **more))


def shares_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace parameters of the types `ConfigOptions` and `ScreenOptions` by the options in these classes.

    The options of `ConfigOptions` come before the command's other parameters, those of `ScreenOptions` after them."""
    declared = inspect.signature(command).parameters.values()
    option_classes = {it.name: it.annotation for it in declared if it.annotation in (ConfigOptions, ScreenOptions)}
    parameters_of_class: dict[Any, list[inspect.Parameter]] = {ConfigOptions: [], None: [], ScreenOptions: []}
    for parameter in declared:
        option_class = option_classes.get(parameter.name)
        parameters = inspect.signature(option_class).parameters.values() if option_class else [parameter]
        parameters_of_class[option_class] += parameters

    @wraps(command)
    def command_with_options(**options: Any) -> None:
        for name, option_class in option_classes.items():
            options[name] = option_class(**{it.name: options.pop(it.name) for it in parameters_of_class[option_class]})
        command(**options)

    signature = inspect.Signature(list(chain.from_iterable(parameters_of_class.values())))
    command_with_options.__signature__ = signature  # type: ignore[attr-defined]
    return command_with_options


def run_named(reference: str) -> "RunFolder":
    """Return the run that the argument RUN names. Raises FolderError."""
    from tui_trainer.runs.registry import find_run

    return find_run(reference)


def detach_run(folder: "RunFolder", *, as_json: bool, **settings: Any) -> None:
    """Continue a run in a background process, and print how to follow it. Raises RunError and FolderError."""
    from tui_trainer.launching.detached import resume_detached
    from tui_trainer.runs.wording import come_back_words

    pid = resume_detached(folder, **settings)
    if as_json:
        print_json({"name": folder.name, "folder": str(folder.root), "pid": pid})
        return
    name = one_line(folder.name)
    print(f"{name} is training in background process {pid}\n{come_back_words(name)}")


HELD_LOCKS = ExitStack()
"""Locks that the command holds until it ends."""


def lock_named_run(reference: str, command: str) -> "RunFolder":
    """Return the named run, locked against renaming and deleting until the command ends. Raises FolderError."""
    from tui_trainer.runs.lock import keep_in_use

    folder = run_named(reference)
    HELD_LOCKS.enter_context(keep_in_use(folder, f"{command} {folder.name}"))
    return folder


def trained_model(folder: "RunFolder", *, unfinished: bool = False) -> "TrainedModel":
    """Return the trained model of a run. Print notes on its settings that are no longer used. Raises FolderError."""
    from tui_trainer.exporting.trained_model import TrainedModel

    trained = TrainedModel.of(folder, unfinished=unfinished)
    for note in trained.notes:
        print_to_stderr(f"{folder.name}: {note}")
    return trained


def print_result(value: object, lines: Sequence[str], as_json: bool) -> None:
    """Print a result as JSON, or else as lines."""
    if as_json:
        print_json(value)
    elif lines:
        print("\n".join(lines))


def print_json(value: object) -> None:
    """Print a value as JSON. Numbers that JSON does not have, such as NaN, become strings."""
    from tui_trainer.runs.json_fields import replace_non_finite

    print(json.dumps(replace_non_finite(value), default=str, indent=1, allow_nan=False))
