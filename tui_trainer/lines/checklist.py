"""The checklist as lines or JSON, and the writing of a config file with all its fixes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tui_trainer.advice.checklist import Finding, apply_fixes, count_statuses, run_checks, worst
from tui_trainer.advice.contract import Status
from tui_trainer.advice.gather import gather
from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.save import to_toml
from tui_trainer.config.toml_files import refuse_existing, write_new
from tui_trainer.data.progress import Progress
from tui_trainer.errors import EXIT_DONE, EXIT_FAILED
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.runs.json_fields import replace_non_finite
from tui_trainer.terminal.safe_text import one_line

_SHOWN_FIX_WIDTH = 60
_STATUSES: tuple[Status, ...] = ("pass", "warn", "fail", "n/a", "error")


def print_checks(
    loaded: LoadedConfig,
    *,
    as_json: bool,
    fix: Path | None = None,
    progress: Progress | None = None,
    gpu: GpuChoice = None,
) -> int:
    """Print the findings of all checks. With `fix`, first write a config with all fixes to this path, and check it.

    Return the exit code: 1 if a check fails, else 0. Raises InputError if `fix` exists or cannot be written."""
    gather_evidence = partial(gather, progress=progress, gpu=gpu, counts=True)
    changes: dict[str, Any] = {}
    if fix is None:
        findings = run_checks(gather_evidence(loaded))
    else:
        refuse_existing(fix)
        loaded, changes, findings = apply_fixes(loaded, gather_evidence)
        write_new(fix, to_toml(loaded))
    print(_as_json(findings, changes, fix) if as_json else "\n".join(check_lines(findings, changes, fix)))
    return EXIT_FAILED if worst(findings) in ("fail", "error") else EXIT_DONE


def check_lines(findings: Sequence[Finding], changes: dict[str, Any], fix: Path | None) -> list[str]:
    """Return the lines about each check and its remedies, then the counts: `27 pass, 1 warn, 0 fail, 9 n/a`."""
    title_width = max((len(finding.title) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines += _finding_lines(finding, title_width)
    count = count_statuses(findings)
    lines += ["", ", ".join(f"{count[status]} {status}" for status in _STATUSES if count[status] or status != "error")]
    if fix is not None:
        lines += [f"set    {key} = {_value(value)}" for key, value in changes.items()]
        lines.append(f"wrote {one_line(str(fix))}; next: tui-trainer plan {one_line(str(fix))}")
    elif any(finding.fix for finding in findings):
        lines.append("to write a config with the fixes: tui-trainer check --fix OUT.toml")
    return lines


def _finding_lines(finding: Finding, width: int) -> list[str]:
    verdict, indent = finding.verdict, " " * 7
    lines = [f"{finding.status:<5}  {finding.title:<{width}}  {one_line(verdict.evidence)}"]
    if not finding.is_open:
        return [*lines, f"{indent}gain: {finding.gain_words}"] if finding.gain else lines
    lines += [f"{indent}{one_line(detail)}" for detail in verdict.details]
    lines += [f"{indent}fix: {change.key} = {_value(change.old)} -> {_value(change.new)}" for change in finding.changes]
    lines += [f"{indent}do: {one_line(verdict.advice)}"] if verdict.advice else []
    if finding.fix:
        published_text = f"; published: {finding.rule.published_gain}" if finding.rule.published_gain else ""
        lines.append(f"{indent}gain: {finding.gain_words}{published_text}")
    return lines


def _value(value: Any) -> str:
    return one_line(json.dumps(value), _SHOWN_FIX_WIDTH)


def _as_json(findings: Sequence[Finding], changes: dict[str, Any], fix: Path | None) -> str:
    objects = [_as_object(finding) for finding in findings]
    written_fields = {} if fix is None else {"fixed": changes, "written": str(fix)}
    result = {"worst": worst(findings), "counts": count_statuses(findings), "findings": objects, **written_fields}
    return json.dumps(replace_non_finite(result), indent=1, allow_nan=False)


def _as_object(finding: Finding) -> dict[str, Any]:
    rule, verdict = finding.rule, finding.verdict
    return {
        "check": rule.name,
        "title": rule.title,
        "status": finding.status,
        "evidence": verdict.evidence,
        "details": list(verdict.details),
        "fix": {change.key: {"old": change.old, "new": change.new} for change in finding.changes} or None,
        "advice": verdict.advice,
        "why": rule.why,
        "published_gain": rule.published_gain,
        "measured_gain": finding.measured_gain,
        "reckoned_gain": verdict.reckoned_gain,
        "measured": _measured(finding),
    }


def _measured(finding: Finding) -> dict[str, Any] | None:
    """Return the measurement behind `measured_gain` for JSON; None if the gain was not measured."""
    gain = finding.gain
    if gain is None:
        return None
    key = "fix" if finding.fix else "compared_with"
    return {**asdict(gain), key: dict(finding.alternative or {}), "is_difference": gain.is_difference}
