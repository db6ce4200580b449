"""Measure on this machine what a change in the checklist gains, in alternating turns without and with the change.

Each pair of turns gives one ratio of tokens per second, so that other load on the machine affects both turns. Measuring
changes no setting. Gains are stored (`advice/measured_gains.py`) and from then on shown in the checklist."""

from collections.abc import Sequence
from dataclasses import dataclass

from tui_trainer.advice.checklist import ALL, Finding, all_checks, patch_words, run_checks
from tui_trainer.advice.context import Context
from tui_trainer.advice.fixes import load_patched, patched_request
from tui_trainer.advice.gather import gather
from tui_trainer.advice.measured_gains import Gain, Measurable, keep_gain
from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import InputError, name_hint
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.measure.sessions import WARM_UP_STEPS
from tui_trainer.measure.steps import Steps, refuse_while_training, short_run, why_unchanged
from tui_trainer.measure.turns import CURRENT, INTERRUPTED, Notify, TimeLimit, Variant, measure_in_turns
from tui_trainer.planning.plan import Plan
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import utc_now

TURN_PAIRS, SECONDS = 3, 300.0
# Bounds of the number of steps in a turn.
_MOST_STEPS, _LEAST_STEPS = 24, 6
# Time of a turn in addition to its steps. Importing libraries alone takes some seconds.
_START_SECONDS = 12.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GainBench:
    """Measurement of the checks in `names` (`all`: all checks), with at most `seconds` for each check."""

    loaded: LoadedConfig
    names: Sequence[str]
    notify: Notify
    gpu: GpuChoice = None
    seconds: float = SECONDS
    pairs: int = TURN_PAIRS

    def measure(self) -> bool:
        """Measure the checks one by one, and store each gain at once. Return False if the user interrupted this.

        Raises InputError if a name is unknown, if a run trains on this machine, or if the config cannot be planned.
        """
        names = [ALL, *(check.name for check in all_checks())]
        if bad_names := [name for name in self.names if name not in names]:
            raise InputError(f"there is no check {one_line(bad_names[0], 40)!r}", hint=name_hint(bad_names[0], names))
        refuse_while_training("measure")
        try:
            context = gather(self.loaded, gpu=self.gpu)
            if context.plan is None:
                raise InputError(context.problems or "these settings cannot be planned")
            findings = run_checks(context)
            for finding in findings:
                if finding.name in self.names and finding.why_not_measured:
                    self.notify(f"{finding.name}: {finding.why_not_measured}: {finding.verdict.evidence}")
            chosen_findings = [finding for finding in findings if {finding.name, ALL} & set(self.names)]
            return all(self._measure(context, finding) for finding in chosen_findings if not finding.why_not_measured)
        except KeyboardInterrupt:
            return False

    def _measure(self, context: Context, finding: Finding) -> bool:
        """Measure one check, and store the gain of complete pairs. Return False if the user interrupted this."""
        patch = finding.alternative or {}
        try:
            reason = why_unchanged(context.required_plan, self._plan(patch), patch)
        except InputError as error:
            reason = one_line(str(error))
        if reason:
            self._keep(finding, Gain(at=utc_now(), reason=reason))
            return True
        share_seconds, most_steps = self.seconds / (2 * self.pairs), _MOST_STEPS
        if context.step_seconds:
            fitting_steps = int((share_seconds - _START_SECONDS) / context.step_seconds) - WARM_UP_STEPS
            most_steps = min(max(fitting_steps, _LEAST_STEPS), _MOST_STEPS)
        request = short_run(patched_request(self.loaded, {}), most_steps, {})
        steps = Steps(request, self.gpu, count=most_steps, share_seconds=share_seconds, least_steps=_LEAST_STEPS)
        before, after = Variant(name=CURRENT), Variant(name=patch_words(patch), patch=patch)
        time_limit = TimeLimit(self.seconds)

        def notify(line: str) -> None:
            self.notify(f"{finding.name}: {line.strip()}")

        measure_in_turns([before, after], steps.ask, time_limit, rounds=self.pairs, notify=notify, needs_all=True)
        failed_variant = next((variant for variant in (before, after) if variant.reason and not variant.answers), None)
        if failed_variant and not time_limit.cut_short:
            self._keep(finding, Gain(at=utc_now(), reason=f"{failed_variant.name}: {failed_variant.reason}"))
        elif after.answers:
            self._keep(finding, Gain.of_pairs(before.answers, after.answers, steps.count))
        else:
            self.notify(f"{finding.name}: not measured, {time_limit.cut_short} before the first comparison")
        return time_limit.cut_short != INTERRUPTED

    def _keep(self, finding: Finding, gain: Gain) -> None:
        """Report the gain of a check, and store it for plans made now, which use the data that the turns prepared."""
        patch = finding.alternative or {}
        plan = estimated_plan(self.loaded, gpu=self.gpu)
        try:
            shape_key_after = self._plan(patch).shape_key
        except InputError:
            shape_key_after = ""
        keep_gain(Measurable.of(plan), patch, shape_key_after, gain)
        described_gain = gain if finding.fix or gain.reason else gain.inverse()
        self.notify(f"{finding.name}: {described_gain.words('' if finding.fix else patch_words(patch))}")

    def _plan(self, patch: Patch) -> Plan:
        return estimated_plan(load_patched(self.loaded, patch), gpu=self.gpu)
