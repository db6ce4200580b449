"""A report for programs: the facts as they were measured, in bytes and seconds, where the other forms have words."""

import json
from dataclasses import asdict
from typing import Any

from tui_trainer.doctor.examine import examine
from tui_trainer.reporting.facts import RunFacts
from tui_trainer.runs.json_fields import finite
from tui_trainer.runs.result import best_before
from tui_trainer.runs.targets import targets_of


def to_json(facts: RunFacts) -> str:
    """The whole report as one object. What is not known is null, and what is no number is a string."""
    return json.dumps(finite(_object(facts)), default=str, indent=1, allow_nan=False)


def _object(facts: RunFacts) -> dict[str, Any]:
    state, plan, data = facts.state, facts.plan, facts.state.data
    ended, best = state.failed or state.finished, best_before(state)
    return {
        "run": facts.folder.name,
        "folder": facts.folder.root,
        "status": facts.status,
        "step": state.step,
        "total_steps": state.total_steps,
        "ended": None if ended is None else asdict(ended),
        "better_before": None if best is None else asdict(best),
        "model": asdict(facts.model),
        "targets": [{**asdict(target), "met": target.met} for target in targets_of(state)],
        "charts": [asdict(chart) for chart in facts.charts],
        "evaluations": [asdict(done) for done in state.evals],
        "starts": [{**asdict(start), "seconds": start.seconds} for start in facts.starts],
        "problems": [asdict(problem) for problem in state.problems],
        "settings": [asdict(setting) for setting in facts.asked],
        "plan": None if plan is None else plan.model_dump(mode="json"),
        "plan_fault": facts.plan_fault,
        "journal_damage": facts.journal_damage,
        "data": None if data is None else asdict(data),
        "costs": asdict(facts.costs),
        "doctor": _verdict(facts),
        "exports": facts.exports,
        "samples": [asdict(sample) for sample in state.samples],
        "config": facts.config_text,
        "versions": state.versions,
    }


def _verdict(facts: RunFacts) -> dict[str, Any] | None:
    """None before the first step."""
    if not facts.state.steps:
        return None
    verdict = examine(facts.state)
    findings = [{"diagnosis": one.name, **asdict(one.found)} for one in verdict.findings]
    return {"verdict": verdict.name, "words": verdict.words, "findings": findings}
