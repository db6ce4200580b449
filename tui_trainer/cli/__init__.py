"""The command line. Each command reads its arguments, asks one room, prints. Heavy imports stay inside the commands."""

import sys

from tui_trainer.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, InputError, RunError
from tui_trainer.hardware.environment import prepare_environment
from tui_trainer.standard_files import open_standard_files, silence_output, tell


def main(arguments: list[str] | None = None) -> int:
    """The console script: exit code 0 done, 1 failed, 2 wrong input, 3 stopped early with a checkpoint."""
    open_standard_files()
    prepare_environment()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(arguments)
    except InputError as error:
        for problem in error.problems:
            tell(str(problem))
        return EXIT_BAD_INPUT
    except RunError as error:
        tell(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        tell("interrupted")
        return EXIT_FAILED
    except BrokenPipeError:
        silence_output()
        return EXIT_DONE


def _run(arguments: list[str]) -> int:
    if not arguments:
        # The commonest start goes without typer, whose import would be a quarter of the time to the first screen.
        from tui_trainer.ui.main import run_screens

        return run_screens()
    from tui_trainer.cli.commands import run_command

    return run_command(arguments)
