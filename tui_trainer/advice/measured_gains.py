"""Stores how much faster one config trains than another, as `measure/gains.py` measured it on this machine.

Each pair of configs has a record (`records.py`) for its device, so a gain is found from either config: before a fix is
applied and afterwards. A record is not used if the shape of the steps or the version of torch has changed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from statistics import median
from typing import Annotated, Any, Self

from pydantic import AfterValidator, PositiveFloat

from tui_trainer.config.load import all_settings, value_of
from tui_trainer.hardware.libraries import read_versions
from tui_trainer.measure.turns import spread_of
from tui_trainer.planning.measured_steps import StepKey
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.records import GAIN, Key, device_key, figures_as, keep_record, records_of_device
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_bytes, utc_now

# These settings determine the number of steps, the work between steps, and where files are written. They do not change
# a step.
_OUTSIDE_OF_STEPS = tuple(
    """evaluation. checkpoint. logging. output. targets. training.num_train_epochs training.max_steps data.eval_fraction
    data.eval_path data.max_chars data.dedup""".split()
)
_NAMES = ("schema_version", "profile", "hardware_profile")
# On a busy machine, two measurements of the same config differ by this much.
_LEAST_DIFFERENCE, _LEAST_MEMORY_DIFFERENCE = 0.02, 0.03
# Pairs that differ this much say nothing about a speed.
_NOISY_SPREAD = 0.3

Answer = Mapping[str, Any]
"""Figures of some measured steps, as a worker process returns them."""
_Line = Annotated[str, AfterValidator(lambda text: one_line(text, 300))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """The gain of one config over another.

    `ratios` has the speed of the second config relative to the first for each pair of measured turns. It is empty if
    nothing could be measured, for `reason`. Peak memory and held-out losses are of the (first, second) config."""

    at: _Line
    ratios: tuple[PositiveFloat, ...] = ()
    steps: int = 0
    memory_bytes: tuple[int, int] = (0, 0)
    losses: tuple[float, float] = (0.0, 0.0)
    reason: _Line = ""

    @classmethod
    def of_pairs(cls, before: Sequence[Answer], after: Sequence[Answer], steps: int) -> Self:
        """Return the gain from the measured turns of both configs. A turn without a counterpart is not used."""
        pairs = list(zip(before, after, strict=False))
        return cls(
            at=utc_now(),
            ratios=tuple(new["tokens_per_second"] / old["tokens_per_second"] for old, new in pairs),
            steps=steps,
            memory_bytes=(_peak_bytes(before), _peak_bytes(after)),
            losses=(before[0]["loss"], after[0]["loss"]),
        )

    @property
    def speed_up(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    @property
    def spread(self) -> float | None:
        """Half of the range of `ratios` as a share of their median; None for a single pair."""
        return spread_of(self.ratios)

    @property
    def is_difference(self) -> bool:
        """Whether the speeds differ by more than the noise between pairs of turns; False for a single pair."""
        if self.spread is None:
            return False
        band = max(_LEAST_DIFFERENCE, self.spread)
        return not min(self.ratios) <= 1 <= max(self.ratios) and abs(median(self.ratios) - 1) > band

    @property
    def is_slower(self) -> bool:
        return self.is_difference and max(self.ratios) < 1

    def inverse(self) -> Self:
        """Return the reverse gain: of the first config over the second."""
        ratios = tuple(1 / ratio for ratio in self.ratios)
        return replace(self, ratios=ratios, memory_bytes=self.memory_bytes[::-1], losses=self.losses[::-1])

    def words(self, compared_with: str = "") -> str:
        """Return the gain as text: `1.80 times as fast (measured here 2026-11-23, 3 comparisons, +-4 %)`, followed by
        memory and loss if they differ."""
        if self.speed_up is None:
            return f"cannot be measured: {self.reason} (tried on {self.at[:10]})"
        comparison = f" as with {compared_with}" if compared_with else ""
        speed = f"{self.speed_up:.2f} times as fast{comparison}"
        if len(self.ratios) > 1 and not self.is_difference:
            speed = "no measurable difference in speed" + (f" from {compared_with}" if compared_with else "")
            if (self.spread or 0) > _NOISY_SPREAD:
                speed = "too noisy to compare: measure again when other programs are idle"
        pairs_text = f"{len(self.ratios)} comparisons" if len(self.ratios) > 1 else "1 comparison, too few to be sure"
        spread_text = "" if self.spread is None else f", +-{self.spread * 100:.0f} %"
        sentence = f"{speed} (measured here {self.at[:10]}, {pairs_text}{spread_text})"
        (bytes_before, bytes_after), (loss_before, loss_after) = self.memory_bytes, self.losses
        if bytes_before and abs(bytes_after / bytes_before - 1) > _LEAST_MEMORY_DIFFERENCE:
            sentence += f"; memory {format_bytes(bytes_before)} -> {format_bytes(bytes_after)}"
        if f"{loss_before:.3f}" != f"{loss_after:.3f}":
            sentence += f"; held-out loss {loss_before:.3f} -> {loss_after:.3f} after {self.steps} steps"
        return sentence


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurable:
    """A planned config for looking up gains: the device, version of torch, shape of a step and settings."""

    device: str
    torch: str
    shape_key: str
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        gpu_name = plan.device_name if plan.device == "cuda" else ""
        return cls(
            device=device_key(plan.cpu_name, plan.threads.value, gpu_name),
            torch=read_versions(("torch",))["torch"] or "",
            shape_key=plan.shape_key,
            settings={key: value_of(plan.config, key) for key in all_settings() if affects_steps(key)},
        )

    def digest(self, patch: Mapping[str, Any]) -> str:
        """Return a digest of the settings with a patch applied, which does not distinguish 1 from 1.0."""
        values = {**self.settings, **{key: value for key, value in patch.items() if affects_steps(key)}}
        float_values = {key: value + 0.0 if type(value) is int else value for key, value in values.items()}
        return sha256(json.dumps(float_values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def affects_steps(key: str) -> bool:
    """Return whether a setting may change the time, the memory or the loss of a step."""
    return not key.startswith(_OUTSIDE_OF_STEPS) and key not in _NAMES


@dataclass(frozen=True, slots=True)
class KeptGains:
    """The measured gains of one config, read once for all checks."""

    about: Measurable
    entries: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, about: Measurable) -> Self:
        return cls(about, {record.part: record.figures for record in records_of_device(GAIN, about.device)})

    def find(self, patch: Mapping[str, Any]) -> Gain | None:
        """Return the gain of the patched config over this one; None if it was not measured under these conditions."""
        present_digest, patched_digest = self.about.digest({}), self.about.digest(patch)
        figures = self.entries.get(_pair(present_digest, patched_digest), {})
        gain = figures_as(Gain, figures)
        if gain is None or present_digest == patched_digest or figures["torch"] != self.about.torch:
            return None
        if figures["shapes"].get(present_digest) != self.about.shape_key:
            return None
        if figures["from"] == present_digest:
            return gain
        return gain.inverse() if gain.ratios else None


def _peak_bytes(answers: Sequence[Answer]) -> int:
    return int(max(answer["peak_memory_bytes"] for answer in answers))


def keep_gain(before: Measurable, patch: Mapping[str, Any], after_shape_key: str, gain: Gain) -> None:
    """Store the gain of the patched config over `before`, replacing an earlier measurement."""
    present_digest, patched_digest = before.digest({}), before.digest(patch)
    shapes = {present_digest: before.shape_key, patched_digest: after_shape_key}
    entry = {"from": present_digest, "torch": before.torch, "shapes": shapes, **asdict(gain)}
    step_key = StepKey.read(before.shape_key)
    torch_key = Key(device=before.device, versions=f"torch {before.torch}")
    key = step_key.record_key(before.device) if step_key else torch_key
    keep_record(GAIN, key, entry, part=_pair(present_digest, patched_digest))


def _pair(digest: str, other: str) -> str:
    return "-".join(sorted((digest, other)))
