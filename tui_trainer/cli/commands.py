"""All commands together: importing a module of commands adds them to the application."""

import pkgutil
from importlib import import_module
from pathlib import Path

import typer

from tui_trainer.cli.application import app
from tui_trainer.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from tui_trainer.standard_files import tell

for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
    import_module(f"{__package__}.{module.name}")


def run_command(arguments: list[str]) -> int:
    """Carry out one command. Returns its exit code; errors of ours pass on."""
    try:
        code = app(args=arguments, prog_name="tui-trainer", standalone_mode=False)
    except typer.TyperException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "tui-trainer")
        options = "commands and options" if command == "tui-trainer" else "its options"
        tell(f"{error.format_message().rstrip('.')}; `{command} --help` lists {options}")
        return EXIT_BAD_INPUT
    except typer.Abort:
        tell("interrupted")
        return EXIT_FAILED
    return code if isinstance(code, int) else EXIT_DONE
