"""The doctor's findings about a run as lines or JSON, and writing a config with its remedies."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tui_trainer.advice.examine import Examination, FoundCause, examine
from tui_trainer.advice.fixes import load_patched
from tui_trainer.config.changes import settings_words
from tui_trainer.config.load import Request
from tui_trainer.config.save import to_toml
from tui_trainer.config.toml_files import refuse_existing, write_new
from tui_trainer.errors import InputError
from tui_trainer.launching.open_run import load_config
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.json_fields import replace_non_finite
from tui_trainer.runs.state import RunState, read_run
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.units import format_percent

_COST_WIDTH = 7


def print_verdict(folder: RunFolder, *, as_json: bool, fix: Path | None = None) -> None:
    """Print the doctor's findings about a run. With `fix`, write a config with the remedies to this path.

    Raises InputError if `fix` exists or cannot be written, or if no remedy changes a setting."""
    if fix is not None:
        refuse_existing(fix)
    state = read_run(folder)
    verdict, damage_text = examine(state), state.journal_damage
    if fix is not None:
        if not verdict.fix:
            raise InputError(f"the doctor suggests no changes to the settings of {folder.name}", hint=verdict.words)
        loaded = load_config(Request(config_file=folder.config))
        write_new(fix, to_toml(load_patched(loaded, {**verdict.fix, "output.name": ""})))
    if as_json:
        document = _as_object(folder, state, verdict, fix) | {"journal_damage": damage_text}
        print(json.dumps(replace_non_finite(document), indent=1, allow_nan=False))
    else:
        print("\n".join([*verdict_lines(folder.name, state, verdict, fix), *filter(None, [damage_text])]))


def verdict_lines(name: str, state: RunState, verdict: Examination, fix: Path | None = None) -> list[str]:
    """Return a line about the run, then the lines of each finding with evidence and remedy, costliest first."""
    lines = [f"{one_line(name)}: {state.status}, step {state.step} of {state.total_steps}", ""]
    for finding in verdict.findings:
        lines += _finding_lines(finding)
    if verdict.leading_finding is None:
        lines.append(verdict.healthy_sentence)
    if fix is not None:
        lines += ["", f"wrote {one_line(str(fix))}: {settings_words(verdict.fix)}"]
    elif verdict.fix:
        lines += ["", f"to write a config with these settings: tui-trainer doctor {shell_word(name)} --fix OUT.toml"]
    return lines


def _finding_lines(finding: FoundCause) -> list[str]:
    cause, indent = finding.cause, " " * (_COST_WIDTH + 2)
    cost_text = "error" if cause.is_fault else format_percent(cause.share) if finding.matters else "note"
    lines = [f"{cost_text:<{_COST_WIDTH}}  {one_line(cause.cause)}", f"{indent}{one_line(cause.evidence)}"]
    # `--fix` writes only what matters.
    verb = "set" if finding.matters else "consider"
    lines += [f"{indent}{verb}: {settings_words(cause.fix)}"] if cause.fix else []
    lines += [f"{indent}do: {one_line(cause.advice)}"] if cause.advice else []
    return [*lines, f"{indent}why: {finding.symptom.why}"]


def _as_object(folder: RunFolder, state: RunState, verdict: Examination, fix: Path | None) -> dict[str, Any]:
    result = {
        "run": folder.name,
        "status": state.status,
        "step": state.step,
        "verdict": verdict.name or None,
        "words": verdict.words,
        "findings": [
            {"diagnosis": it.name, "title": it.symptom.title, "why": it.symptom.why, **asdict(it.cause)}
            for it in verdict.findings
        ],
        "fix": verdict.fix or None,
    }
    return result if fix is None else result | {"written": str(fix)}
