"""The user's own commands on a run: `commands.toml`, beside `keys.toml`.

    [commands]
    "push" = "rsync -a {path} server:"

Blanks and quotes separate words as in a shell, but no shell runs: a run's path stays one word, whatever is in it.
"""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Final

from tui_trainer.errors import system_reason
from tui_trainer.launching.command_process import JsonProcess
from tui_trainer.runs.folder import RunFolder
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.command_dialogs import open_tool
from tui_trainer.ui.dialogs import Answer
from tui_trainer.ui.keymap import keys_file
from tui_trainer.ui.own_processes import Tool
from tui_trainer.ui.workbench import Workbench
from tui_trainer.worker.child import Child, exit_phrase

# Placeholders with a `$` or a blank, as in `${NAME}` and `{print $1}`, are left to the command.
_PLACEHOLDER: Final = re.compile(r"(?<!\$)\{(\w+)\}")
_SHELLS: Final = ("sh", "bash", "dash", "zsh", "fish")
_KEYS: Final = "1234567890" + ascii_uppercase.replace("E", "")
_KEPT_LINES: Final = 1000


def commands_file() -> Path:
    return keys_file().with_name("commands.toml")


def command_line(text: object, folder: RunFolder) -> list[str]:
    """Return the words of a user's command for this run. Raise ValueError if the command is not valid."""
    values = {"path": str(folder.root.absolute()), "name": folder.name}
    arguments = shlex.split(text) if isinstance(text, str) else []
    if not arguments:
        raise ValueError("a command must be a text in quotes that is not empty")
    for argument in arguments:
        placeholders = _PLACEHOLDER.findall(argument)
        if unknown_names := [name for name in placeholders if name not in values]:
            raise ValueError(f"unknown placeholder {{{unknown_names[0]}}}; use {{path}} or {{name}}")
        if placeholders and argument != f"{{{placeholders[0]}}}" and Path(arguments[0]).name in _SHELLS:
            raise ValueError("""in a shell command, {path} must be a separate word: sh -c 'ls "$1"' sh {path}""")
    return [_PLACEHOLDER.sub(lambda placeholder: values[placeholder[1]], argument) for argument in arguments]


def own_answers(bench: Workbench, folder: RunFolder) -> list[Answer]:
    """Return the user's commands as items of a menu. If the file is not valid, return one item that says why."""
    try:
        commands = tomllib.loads(commands_file().read_text(encoding="utf-8")).get("commands")
        if not isinstance(commands, dict):
            raise ValueError("the file has no table [commands]")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        problem = f"commands.toml: {one_line(system_reason(error), 100)}"
        return [("1", problem, lambda: bench.show_notice(problem, "warn"))]
    return [
        (key, f"{one_line(name, 30)}: {one_line(str(text), 60)}", partial(_offer, bench, folder, name, text))
        for key, (name, text) in zip(_KEYS, commands.items(), strict=False)
    ]


def _offer(bench: Workbench, folder: RunFolder, name: str, text: object) -> None:
    """Show the exact command line. Enter runs it."""
    try:
        arguments = command_line(text, folder)
    except ValueError as error:
        bench.show_notice(f"commands.toml: {one_line(name, 30)}: {error}", "warn")
        return
    title = f"{one_line(name, 30)}: {one_line(folder.name, 40)}"
    lines = [one_line(shlex.join(arguments)), one_line(f"Enter runs this command without a shell, in {Path.cwd()}.")]
    open_tool(bench, _OwnCommand(bench, title, arguments, done=lambda _: f"{title}: done"), title, lines)


class _OwnCommand(Tool):
    def start(self) -> str:
        return self._begin(lambda: _Program(self.arguments))


class _Program(JsonProcess):
    """Process of any program, whose output is shown but not interpreted."""

    part = "running"

    def __init__(self, words: Sequence[str]) -> None:
        self.lines = []
        Child.__init__(self, words, errors=subprocess.STDOUT)

    def _handle_line(self, line: str) -> None:
        self.lines = [*self.lines, one_line(line)][-_KEPT_LINES:]
        self.part = self.lines[-1]

    def _end(self, exit_code: int) -> None:
        self.reason = self.cancelled_words if self.is_cancelled else f"the command {exit_phrase(exit_code)}"
        if exit_code == 0:
            self.result = {"exit_code": 0}
