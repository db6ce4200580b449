"""What the doctor finds in a run, as lines for people or JSON for programs, and a config with its remedies."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tui_trainer.advice.examine import Examination, FoundCause, examine
from tui_trainer.advice.fixes import patched
from tui_trainer.config.changes import settings_words
from tui_trainer.config.load import Request
from tui_trainer.config.save import to_toml
from tui_trainer.config.toml_files import refuse_existing, write_new
from tui_trainer.errors import InputError
from tui_trainer.launching.open_run import load_config
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.json_fields import finite
from tui_trainer.runs.state import RunState, read_run
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.units import percent

_COST_WIDTH = 7


def print_verdict(folder: RunFolder, *, as_json: bool, fix: Path | None = None) -> None:
    """Read the journal of a run once and print what ails it; with `fix`, write its config with the remedies there.

    Raises InputError when `fix` exists, cannot be written, or there is nothing to set.
    """
    if fix is not None:
        refuse_existing(fix)
    state = read_run(folder)
    verdict, damage = examine(state), state.journal_damage
    if fix is not None:
        if not verdict.fix:
            raise InputError(f"the doctor suggests no changes to the settings of {folder.name}", hint=verdict.words)
        config = load_config(Request(config_file=folder.config))
        write_new(fix, to_toml(patched(config, {**verdict.fix, "output.name": ""})))
    if as_json:
        told = _as_object(folder, state, verdict, fix) | {"journal_damage": damage}
        print(json.dumps(finite(told), indent=1, allow_nan=False))
    else:
        print("\n".join([*verdict_lines(folder.name, state, verdict, fix), *filter(None, [damage])]))


def verdict_lines(name: str, state: RunState, verdict: Examination, fix: Path | None = None) -> list[str]:
    """One line for what was looked at, then each finding with its numbers and remedy, the costliest first."""
    lines = [f"{one_line(name)}: {state.status}, step {state.step} of {state.total_steps}", ""]
    for one in verdict.findings:
        lines += _finding_lines(one)
    if verdict.leading is None:
        lines.append(verdict.healthy)
    if fix is not None:
        lines += ["", f"wrote {one_line(str(fix))}: {settings_words(verdict.fix)}"]
    elif verdict.fix:
        lines += ["", f"to write a config with these settings: tui-trainer doctor {shell_word(name)} --fix OUT.toml"]
    return lines


def _finding_lines(one: FoundCause) -> list[str]:
    found, indent = one.found, " " * (_COST_WIDTH + 2)
    cost = "error" if found.is_fault else percent(found.share) if one.matters else "note"
    lines = [f"{cost:<{_COST_WIDTH}}  {one_line(found.cause)}", f"{indent}{one_line(found.evidence)}"]
    lines += [f"{indent}set: {settings_words(found.fix)}"] if found.fix else []
    lines += [f"{indent}do: {one_line(found.advice)}"] if found.advice else []
    return [*lines, f"{indent}why: {one.symptom.why}"]


def _as_object(folder: RunFolder, state: RunState, verdict: Examination, fix: Path | None) -> dict[str, Any]:
    result = {
        "run": folder.name,
        "status": state.status,
        "step": state.step,
        "verdict": verdict.name or None,
        "words": verdict.words,
        "findings": [
            {"diagnosis": one.name, **{name: getattr(one.symptom, name) for name in ("title", "why")}}
            | asdict(one.found)
            for one in verdict.findings
        ],
        "fix": verdict.fix or None,
    }
    return result if fix is None else result | {"written": str(fix)}
