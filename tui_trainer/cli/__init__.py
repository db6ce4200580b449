"""The command line. A command reads its arguments, calls one room and prints. Slow imports are inside the commands."""

import pkgutil
import sys
from contextlib import suppress
from importlib import import_module

from tui_trainer import errors
from tui_trainer.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, InputError, RunError
from tui_trainer.hardware.environment import check_environment, prepare_environment
from tui_trainer.terminal import standard_files
from tui_trainer.terminal.standard_files import print_to_stderr


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. Return the exit code: 0 done, 1 failed, 2 wrong input, 3 stopped on request."""
    standard_files.open_standard_files()
    prepare_environment()
    with standard_files.never_blocking_stream("stderr"):
        try:
            code = _run_and_report(sys.argv[1:] if arguments is None else arguments)
            # The interpreter would also flush, but not report the reason of a failure.
            standard_files.flush_output()
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt):
                print_to_stderr("interrupted")
            standard_files.leave_output(EXIT_FAILED)
            return EXIT_FAILED
        except BrokenPipeError:
            standard_files.silence_output()
            return EXIT_DONE
        except OSError as error:
            if not errors.full_disk_words(error):
                raise
            standard_files.silence_output()
            print_to_stderr(f"could not write to standard output: {errors.system_reason(error)}")
            return EXIT_FAILED
    return code


def _run_and_report(arguments: list[str]) -> int:
    """Run a command and print its errors. Return the exit code."""
    try:
        if not {"-h", "--help", "--version"} & {*arguments}:
            check_environment(arguments)
        return _run(arguments)
    except InputError as error:
        for problem in error.problems:
            print_to_stderr(str(problem))
        return EXIT_BAD_INPUT
    except RunError as error:
        print_to_stderr(str(error))
        return EXIT_FAILED


def _run(arguments: list[str]) -> int:
    if not arguments:
        # The most common start avoids typer, whose import takes a quarter of the time to the first screen.
        from tui_trainer.ui.main import run_screens

        return run_screens()
    import typer

    from tui_trainer.cli.application import HELD_LOCKS, app

    # Importing a module of this package adds its commands to the application.
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    try:
        with HELD_LOCKS:
            code = app(args=arguments, prog_name="tui-trainer", standalone_mode=False)
    except typer.TyperException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "tui-trainer")
        options = "commands and options" if command == "tui-trainer" else "its options"
        print_to_stderr(f"{error.format_message().rstrip('.')}; `{command} --help` lists {options}")
        return EXIT_BAD_INPUT
    except typer.Abort:
        print_to_stderr("interrupted")
        return EXIT_FAILED
    return code if isinstance(code, int) else EXIT_DONE
