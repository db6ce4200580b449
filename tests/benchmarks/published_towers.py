"""Plans of the recipes for multimodal checkpoints on a card of 24 GB, part by part beside what is published of them.

    uv run python -m tests.benchmarks.published_towers

Nothing is measured: the card is a fact. What is published are sizes of files, which a plan has to agree with, and peaks
that others had with their own programs and settings, which stand beside the recipe's for comparison.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from tests.benchmarks.profiles_table import full_rows, machine_with
from tui_trainer.config.load import Request, load
from tui_trainer.hardware.gpu_models import CARDS
from tui_trainer.planning import plan as planning
from tui_trainer.planning.hardware_match import choose_hardware_profile
from tui_trainer.planning.plan import Plan
from tui_trainer.units import GIB

GB = 10**9
CARD = next(card for card in CARDS if card.title == "RTX 3090")
_HALF = 2


@dataclass(frozen=True, kw_only=True)
class Published:
    """Bytes of the language model and of everything beside it, as they are loaded. `peak` is somebody's, in words."""

    language_bytes: int
    tower_bytes: int
    source: str
    peak: str


PUBLISHED = {
    "gemma-3-4b-lora": Published(
        language_bytes=8_600_158_944 - _HALF * 417_000_000,
        tower_bytes=_HALF * 417_000_000,
        source="total_size of the safetensors index; vision encoder: Gemma 3, arXiv:2503.19786, table 1",
        peak="none found",
    ),
    "mistral-small-qlora": Published(
        language_bytes=4_980_000_000 + 4_990_000_000 + 4_180_000_000,
        tower_bytes=48_022_722_560 - _HALF * 23_572_403_200,
        source="files of unsloth/Mistral-Small-24B-Instruct-2501-bnb-4bit, the same language model in nf4; towers: the "
        "files of 3.1 without that model in 16 bits",
        peak="21 GB: 2 x 2048 tokens, rank 32, no towers (axolotl's examples/devstral)",
    ),
    "qwen3-vl-4b-lora": Published(
        language_bytes=8_875_631_616 - 830_695_424,
        tower_bytes=830_695_424,
        source="headers of the safetensors files, by the names of their tensors",
        peak="none found",
    ),
}


IN_FOUR_BITS = ("qwen3-vl-4b-lora", "tuning.method=qlora")
"""A recipe that has no QLoRA of its own, with it: of its files the matrices inside the layers become smaller."""


def plan_of(recipe: str, *changes: str) -> Plan:
    """As `tui-trainer plan` makes it for full rows on that card, which nothing else uses, towers among the weights."""
    hardware = machine_with(CARD, cores=16)
    request = Request(profile=recipe, assignments=("model.towers=card", *changes))
    loaded = load(request, lambda requested: choose_hardware_profile(requested, hardware))
    return planning.make(loaded, hardware, full_rows(loaded))


def part_bytes(plan: Plan, name: str) -> int:
    return next((part.bytes for part in plan.memory_parts if part.name == name), 0)


def frozen_bytes(plan: Plan) -> int:
    """Weights without the adapters, which are in fp32."""
    return part_bytes(plan, "weights") - 4 * plan.trained_parameters.value


def table() -> Iterator[str]:
    """Markdown."""
    yield "| recipe | rows | part | planned | published |"
    yield "| --- | --- | --- | --- | --- |"
    for recipe, *changes in (*((name,) for name in PUBLISHED), IN_FOUR_BITS):
        plan, published = plan_of(recipe, *changes), PUBLISHED[recipe]
        beside = {"frozen weights": published.language_bytes, "towers": published.tower_bytes}
        parts = {"frozen weights": frozen_bytes(plan), "adapters": 4 * plan.trained_parameters.value}
        parts |= {part.name: part.bytes for part in plan.memory_parts if part.name != "weights" and part.bytes}
        cut = f"{plan.per_device_train_batch_size.value} x {plan.longest_row}"
        shown = " ".join((f"`{recipe}`", *changes))
        for name, size in parts.items():
            known = f"{beside[name] / GB:.2f} GB" if name in beside else ""
            if changes and name == "frozen weights":
                known += " in 16 bits"
            yield f"| {shown} | {cut} | {name} | {size / GB:.2f} GB | {known} |"
        total = plan.memory_bytes.value
        yield f"| {shown} | {cut} | **all** | {total / GB:.2f} GB ({total / GIB:.1f} GiB) | {published.peak} |"
    yield ""
    yield from (f"{recipe}: {published.source}" for recipe, published in PUBLISHED.items())


def main() -> None:
    os.environ["TUI_TRAINER_HOME"] = tempfile.mkdtemp(prefix="published-towers-")
    planning.disk_free_bytes = lambda path: None  # type: ignore[assignment]
    print("\n".join(table()))


if __name__ == "__main__":
    main()
