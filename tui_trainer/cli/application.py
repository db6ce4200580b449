"""The typer application: which commands there are, and the options that several of them share."""

from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from tui_trainer.errors import InputError
from tui_trainer.safe_text import one_line

if TYPE_CHECKING:
    from tui_trainer.config.load import LoadedConfig, Request
    from tui_trainer.hardware.diagnosis import GpuChoice

_DEFAULT_COMMAND = "train"
MODEL_KEY = "model.model_name_or_path"

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
ModelName = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME", help="Short for --set model.model_name_or_path=NAME: a folder.", show_default=False
    ),
]
TaskName = Annotated[
    str, typer.Option("--task", metavar="NAME", help="Short for --set task.type=NAME.", show_default=False)
]
GpuName = Annotated[
    str,
    typer.Option("--gpu", metavar="N", help="The card to use, or none; without it the freest.", show_default=False),
]
NoUi = Annotated[bool, typer.Option("--no-ui", help="Without screens: print lines.")]
AsciiOnly = Annotated[bool, typer.Option("--ascii", help="Draw the screens with plain ASCII.")]
NoMouse = Annotated[bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
RunReference = Annotated[str, typer.Argument(metavar="RUN", help="A path, a name, the beginning of one, or last.")]


class _TrainByDefault(TyperGroup):
    """`tui-trainer my.toml` means `tui-trainer train my.toml`: the first word is a command or belongs to training."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args[:1] == ["help"]:
            args = ["--help"]
        if not args:
            args = [_DEFAULT_COMMAND]
        elif args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
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
        "tui-trainer [CONFIG] [--profile NAME] [--model FOLDER] [--data PATH] [--set KEY=VALUE]... opens the screens; "
        "with --no-ui it trains at once and prints lines. "
        "Without CONFIG it is about the quickstart recipe, which needs no network and no GPU. "
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


def request_of(
    config: Path | None, profile: str, assignments: list[str] | None, data: str, task: str, model: str = ""
) -> "Request":
    """What the shared options ask for."""
    from tui_trainer.config.load import Request

    shortcuts = {key: value for key, value in (("data.path", data), ("task.type", task), (MODEL_KEY, model)) if value}
    return Request(config_file=config, profile=profile, assignments=tuple(assignments or ()), shortcuts=shortcuts)


def load(
    config: Path | None,
    profile: str,
    assignments: list[str] | None,
    data: str,
    task: str,
    model: str = "",
    *,
    gpu: "GpuChoice" = None,
) -> "LoadedConfig":
    """The config for this machine. Raises ConfigError with all problems."""
    from tui_trainer.launching.start import load_config

    return load_config(request_of(config, profile, assignments, data, task, model), gpu=gpu)


def gpu_choice(word: str) -> "GpuChoice":
    """What `--gpu` asks for. Raises InputError for a card that there is not, or for no number."""
    if word in ("", "none"):
        return "none" if word else None
    if not (word.isascii() and word.isdigit()):
        raise InputError(f"--gpu takes the number of a card, or none, and not {one_line(word, 40)!r}")
    from tui_trainer.hardware.diagnosis import choose_gpu
    from tui_trainer.hardware.probe import probe

    choose_gpu(probe().gpus, int(word))
    return int(word)


def refuse_json_on_screens(*, as_json: bool) -> None:
    """Raises InputError where JSON was asked for and screens would be shown."""
    if as_json:
        raise InputError("--json prints the journal of a run without a screen", hint="add --no-ui")
