"""The command line. Each command reads its arguments, asks one room, prints. Heavy imports stay inside the commands."""

from __future__ import annotations

import typer

# Importing a module of commands adds them to the application.
from tui_trainer.cli import machine, runs, settings, train
from tui_trainer.cli.application import app
from tui_trainer.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, InputError, RunError
from tui_trainer.standard_files import open_standard_files, silence_output, tell

__all__ = ["app", "machine", "main", "runs", "settings", "train"]


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
