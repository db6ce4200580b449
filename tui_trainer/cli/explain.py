"""The command `explain`: what a setting, a check, a finding of the doctor, a command or an exit code means.

Each explanation comes from where the thing is declared."""

import json
import signal
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from tui_trainer.cli.application import Assignments, ConfigOptions, ProfileName, app, option
from tui_trainer.errors import EXIT_CODES, ConfigError, InputError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import listed

if TYPE_CHECKING:
    from tui_trainer.advice.contract import Rule, Symptom
    from tui_trainer.config.load import LoadedConfig

_EXIT_CODE_PREFIXES = ("exit code", "exit")
_LISTS = ("checks", "findings", "commands", "exit codes")
# A shell reports a process that was ended by signal N as exit code 128 + N.
_FIRST_SIGNAL_CODE = 128
_MOST_SUGGESTIONS, _LEAST_SIMILARITY = 4, 0.7


@app.command()
def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            help="A setting, a table of settings, a check, a finding of the doctor, a command or an exit code. "
            "`checks`, `findings`, `commands` and `exit codes` list all of a kind. Without WORD, all settings are "
            "listed.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[Path | None, option("--config", "CONFIG", "Show the values of this config.")] = None,
    profile: ProfileName = "",
    assignments: Assignments = None,
    schema: Annotated[bool, typer.Option("--json-schema", help="Print the JSON Schema of config files.")] = False,
) -> None:
    """Explain a setting, a check, a finding of the doctor, a command or an exit code."""
    from tui_trainer.config.sections import Config

    if schema:
        print(json.dumps(Config.model_json_schema(), indent=1))
        return
    text, load = " ".join(words or ()), ConfigOptions(config, profile, assignments).load
    try:
        print("\n".join(explanation(text, load)))
    except InputError as error:
        # The words may name several things, rather than one title or command that contains blanks.
        try:
            explanations = [explanation(word, load) for word in words or ()]
        except InputError:
            raise error from None
        print("\n\n".join(map("\n".join, explanations)))
    if not text:
        print(f"\nother lists: `tui-trainer explain WORD`, where WORD is {listed(_LISTS)}")


def explanation(word: str, load: "Callable[[], LoadedConfig]") -> list[str]:
    """Return lines about everything that `word` names. `load` returns the config, for the values of settings.

    If `word` names nothing, raises InputError with the nearest words."""
    from tui_trainer.config.explain import describe, find_settings

    sections = list(_sections_about(word)) if word else []
    try:
        settings = find_settings(word)
    except ConfigError:
        if not sections:
            message = f"no setting, check, finding or command is called {one_line(word, 40)!r}"
            raise InputError(message, hint=_suggestions(word)) from None
        settings = []
    if settings:
        loaded = load()
        sections.insert(0, [line for setting in settings for line in describe(setting, loaded)])
    return [line for lines in sections for line in ("", *lines)][1:]


def _sections_about(word: str) -> Iterator[list[str]]:
    """Yield lines about each thing that `word` names, except settings."""
    name = word.lower()
    if name in _LISTS:
        yield [f"{item}: {title}" if title else item for item, title in _titles_by_name(name).items()]
        return
    checks, symptoms = _checks_and_symptoms()
    yield from (_check_lines(rule) for rule in checks if name in (rule.name, rule.title.lower()))
    yield from (_finding_lines(it, rule) for it, rule in symptoms if name in (it.name, it.title.lower()))
    if name in (commands := _command_helps()):
        yield [f"{name} (a command)", *commands[name]().splitlines()]
    digits = next((name.removeprefix(it).strip() for it in _EXIT_CODE_PREFIXES if name.startswith(it)), name)
    if digits.isascii() and digits.isdigit() and (meaning := _meaning_of_code(int(digits))):
        yield [f"{int(digits)} (an exit code)", f"  {meaning}"]


def _checks_and_symptoms() -> "tuple[tuple[Rule, ...], list[tuple[Symptom, Rule]]]":
    """Return all checks, and each symptom that the doctor looks for, paired with its rule."""
    from tui_trainer.advice.checklist import all_checks
    from tui_trainer.advice.contract import all_rules

    return all_checks(), [(symptom, rule) for rule in all_rules() for symptom in rule.symptoms]


def _check_lines(check: "Rule") -> list[str]:
    lines = [f"{check.name} (a check: {check.title})", f"  {check.why}"]
    lines += [f"  settings: {', '.join(check.settings)}"] if check.settings else []
    lines += [f"  published: {check.published_gain}"] if check.published_gain else []
    symptoms = ", ".join(symptom.name for symptom in check.symptoms)
    lines += [f"  during a run the doctor looks for: {symptoms}"] if symptoms else []
    return [*lines, "  `tui-trainer check` shows the result"]


def _finding_lines(symptom: "Symptom", rule: "Rule") -> list[str]:
    from tui_trainer.advice.examine import LEAST_STEPS
    from tui_trainer.units import format_percent

    prefix = f"from {LEAST_STEPS} steps on, " if symptom.needs_steps else ""
    lines = [f"{symptom.name} (a finding of the doctor: {symptom.title})", f"  {' '.join(symptom.why.split())}"]
    least_cost = format_percent(symptom.least_share)
    lines.append(f"  reported:    {prefix}if it costs at least {least_cost} of the time, or if it is an error")
    lines += [f"  settings:    {', '.join(rule.settings)}"] if rule.settings else []
    lines += [f"  the check:   {rule.name}"] if rule.order else []
    return [*lines, "  `tui-trainer doctor RUN` shows the result"]


def _command_helps() -> dict[str, Callable[[], str]]:
    """Return the help of each command by name. A subcommand has a name of two words, such as `bench train`."""
    context = typer.Context(typer.main.get_command(app), info_name="tui-trainer")
    help_by_name: dict[str, Callable[[], str]] = {}
    groups = [("", context)]
    for prefix, parent in groups:
        group = parent.command
        assert isinstance(group, TyperGroup)
        for name, command in group.commands.items():
            child = typer.Context(command, info_name=name, parent=parent)
            help_by_name[f"{prefix}{name}"] = child.get_help
            if isinstance(command, TyperGroup):
                groups.append((f"{prefix}{name} ", child))
    return help_by_name


def _meaning_of_code(code: int) -> str:
    """Return the meaning of an exit code; empty if it has none."""
    if code in EXIT_CODES:
        return EXIT_CODES[code]
    try:
        name = signal.Signals(code - _FIRST_SIGNAL_CODE).name
    except ValueError:
        return ""
    cause = " The system does this when memory runs out: see `tui-trainer guide memory`." if name == "SIGKILL" else ""
    return f"The process was ended by signal {name}.{cause}"


def _titles_by_name(kind: str) -> dict[str, str]:
    """Return the titles of all checks, findings, commands or exit codes (`kind`), by name."""
    checks, symptoms = _checks_and_symptoms()
    if kind == "checks":
        return {check.name: check.title for check in checks}
    if kind == "findings":
        return {symptom.name: symptom.title for symptom, _ in symptoms}
    if kind == "commands":
        return dict.fromkeys(sorted(_command_helps()), "")
    return {str(code): meaning for code, meaning in EXIT_CODES.items()}


def _suggestions(word: str) -> str:
    """Return a hint with the names that are most similar to `word`. Similar settings come first."""
    from tui_trainer.config.explain import near_settings

    name = word.lower().replace(" ", "_")
    similar_names = near_settings(word)
    for kind in ("check", "finding", "command"):
        names = _titles_by_name(f"{kind}s")
        titles = [title.lower() for title in names.values() if title]
        matches = get_close_matches(name, names, n=1, cutoff=_LEAST_SIMILARITY)
        matches = matches or get_close_matches(word.lower(), titles, n=1, cutoff=_LEAST_SIMILARITY)
        similar_names += [f"the {kind} {match}" for match in matches]
    if similar_names:
        return f"did you mean {listed(similar_names[:_MOST_SUGGESTIONS])}?"
    example, *others = _LISTS
    lists_text = f"`tui-trainer explain {example}` lists all {example} (other lists: {', '.join(others)})"
    return f"`tui-trainer explain` lists all settings, and {lists_text}"
