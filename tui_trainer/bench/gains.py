"""What the switches of the checklist gain here: the config as it is and with one fix, or one switch in its other
position, taken in turns in fresh processes.

Each pair of turns gives one ratio of their tokens a second: what else the machine does falls on both. It stops nothing
and changes no setting; what it finds is kept (`advice/measured_gains.py`) and stands in the checklist from then on.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tui_trainer.advice.checklist import ALL, Finding, all_checks, patch_words, run_checks
from tui_trainer.advice.context import Context
from tui_trainer.advice.fixes import as_request, patched
from tui_trainer.advice.gather import gather
from tui_trainer.advice.measured_gains import Gain, Measurable, keep_gain
from tui_trainer.bench.rounds import WARM_UP_STEPS, Rounds, Variant, measure_in_turns
from tui_trainer.bench.training import ask_for_steps, no_change, steps_variant
from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import InputError, name_hint
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.lock import owner
from tui_trainer.runs.registry import known_runs
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import utc_now

PAIRS, SECONDS = 3, 300.0
# Of a turn, and what its process takes beside the steps; libraries alone take some seconds.
_MOST_STEPS, _LEAST_STEPS, _START_SECONDS = 24, 6, 12.0
_AS_IT_IS, _RUNS_LOOKED_AT = "as it is", 20


@dataclass(frozen=True, kw_only=True, slots=True)
class GainBench:
    """`names` are those of checks, or `all`; `seconds` is the most that one of them may take."""

    loaded: LoadedConfig
    names: Sequence[str]
    told: Callable[[str], None]
    gpu: GpuChoice = None
    seconds: float = SECONDS
    pairs: int = PAIRS

    def measure(self) -> bool:
        """Each gain is kept as soon as it is there; False when it was interrupted. Raises InputError for a name that
        no check has, where a run trains, and for a config that cannot be planned."""
        if unknown := [name for name in self.names if name not in _names()]:
            raise InputError(f"there is no check {one_line(unknown[0], 40)!r}", hint=name_hint(unknown[0], _names()))
        refuse_beside_a_run("measure")
        try:
            context = gather(self.loaded, gpu=self.gpu)
            if context.plan is None:
                raise InputError(context.problems or "these settings cannot be planned")
            return all(self._measure(context, finding) for finding in self._chosen(run_checks(context)))
        except KeyboardInterrupt:
            return False

    def _chosen(self, findings: Iterable[Finding]) -> list[Finding]:
        """Those that can be measured; of the others that were named it is told why not."""
        for one in findings:
            if one.name in self.names and one.why_not_measured:
                self.told(f"{one.name}: {one.why_not_measured}: {one.verdict.evidence}")
        return [one for one in findings if not one.why_not_measured and {one.name, ALL} & set(self.names)]

    def _measure(self, context: Context, finding: Finding) -> bool:
        """False when it was interrupted; the whole pairs until then count."""
        patch = finding.alternative or {}
        try:
            reason = no_change(context.planned, self._plan(patch), patch)
        except InputError as error:
            reason = one_line(str(error))
        if reason:
            self._keep(finding, Gain(at=utc_now(), reason=reason))
            return True
        steps, request = self._steps(context), as_request(self.loaded, {})
        turns = _Turns(steps, self.seconds / (2 * self.pairs))
        bench = measure_in_turns(
            [
                steps_variant(_AS_IT_IS, request, self.gpu, steps, {}),
                steps_variant(patch_words(patch), request, self.gpu, steps, patch),
            ],
            turns.ask,
            rounds=self.pairs,
            seconds=self.seconds,
            told=lambda line: self.told(f"{finding.name}: {line.strip()}"),
            needs_all=True,
        )
        gain = _gain(bench, turns.steps)
        if gain.ratios or gain.reason:
            self._keep(finding, gain)
        else:
            self.told(f"{finding.name}: not measured, {bench.cut_short} before the first comparison")
        return bench.cut_short != "interrupted"

    def _keep(self, finding: Finding, gain: Gain) -> None:
        """Under the shapes of now: the data is prepared by the turns, so that they are exact."""
        patch = finding.alternative or {}
        plan = estimated_plan(self.loaded, gpu=self.gpu)
        try:
            after = self._plan(patch).shape_key
        except InputError:
            after = ""
        keep_gain(Measurable.of(plan), patch, after, gain)
        toward = gain if finding.fix or gain.reason else gain.turned()
        self.told(f"{finding.name}: {toward.words('' if finding.fix else patch_words(patch))}")

    def _plan(self, patch: Patch) -> Plan:
        return estimated_plan(patched(self.loaded, patch), gpu=self.gpu)

    def _steps(self, context: Context) -> int:
        if not context.step_seconds:
            return _MOST_STEPS
        turn_seconds = self.seconds / (2 * self.pairs) - _START_SECONDS
        return min(max(int(turn_seconds / context.step_seconds) - WARM_UP_STEPS, _LEAST_STEPS), _MOST_STEPS)


@dataclass(slots=True)
class _Turns:
    """Each of the same steps: as many as the first has taken in its share of the time. What a plan knows of steps may
    be of another machine, or of one that was idle."""

    steps: int
    share_seconds: float
    is_known: bool = False

    def ask(self, variant: Variant, is_first: bool, seconds: float) -> dict[str, Any]:
        limit = {} if self.is_known else {"seconds": self.share_seconds, "least_steps": _LEAST_STEPS}
        found = ask_for_steps(
            replace(variant, question={**variant.question, "steps": self.steps, **limit}), is_first, seconds
        )
        self.steps, self.is_known = found["steps"], True
        return found


def training_run() -> str:
    """The name of a run that trains on this machine; empty: none does."""
    for folder in known_runs()[-_RUNS_LOOKED_AT:]:
        holder = owner(folder.lock)
        if holder is not None and holder.here:
            return one_line(folder.name, 60)
    return ""


def refuse_beside_a_run(verb: str) -> None:
    """Raises InputError where a run trains on this machine."""
    if name := training_run():
        raise InputError(
            f"{name} is training on this machine and would distort the measurement",
            hint=f"{verb} after the run has ended",
        )


def _names() -> list[str]:
    return [ALL, *(check.name for check in all_checks())]


def _gain(bench: Rounds, steps: int) -> Gain:
    """From the first to the second, by the pairs of which both turns were taken."""
    before, after = bench.measured
    pairs = list(zip(before.answers, after.answers, strict=False))
    failed = next((one for one in bench.measured if one.reason and not one.answers and not bench.cut_short), None)
    if failed:
        return Gain(at=utc_now(), reason=f"{failed.variant.name}: {failed.reason}")
    if not pairs:
        return Gain(at=utc_now())
    return Gain(
        at=utc_now(),
        ratios=tuple(new["tokens_per_second"] / old["tokens_per_second"] for old, new in pairs),
        steps=steps,
        memory_bytes=(int(max(before.values("peak_memory_bytes"))), int(max(after.values("peak_memory_bytes")))),
        losses=(before.answers[0]["loss"], after.answers[0]["loss"]),
    )
