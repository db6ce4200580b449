"""Each profile's plan on its cards, as the Markdown of profiles/README.md.

    python tests/benchmarks/profiles_table.py > profiles/README.md

Nothing is measured, and neither the machine nor the disk under it plays a part: the cards are facts, as
`hardware/gpu_models.py` has them, and what is printed is what `tui-trainer plan` would say there, before a first step
calibrates it. Rows are full: shorter documents that share rows take as much memory and fewer rows.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tui_trainer.config.load import LoadedConfig, Request, load
from tui_trainer.config.toml_files import Profile, all_profiles
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.facts import Hardware, with_cards
from tui_trainer.hardware.gpu_models import CARDS, Card
from tui_trainer.planning import plan as planning
from tui_trainer.planning.hardware_match import choose_hardware_profile
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import GIB

DOCUMENTS = 50_000
# A recipe that names no model is shown with one, and the quickstart is no work for a card.
MODELS = {"finetune": "Qwen/Qwen3-0.6B"}
LEFT_OUT = ("quickstart",)
# Of each profile the cards that differ in memory or in what they compute.
SHOWN = (
    "GTX 1080 Ti",
    "GTX 1660",
    "V100 16",
    "V100 32",
    "T4",
    "RTX 2080 Ti",
    "RTX 3060",
    "RTX 3090",
    "A10",
    "RTX A6000",
    "RTX 4070",
    "RTX 4080 SUPER",
    "RTX 4090",
    "RTX 5090",
    "L40S",
    "A100 40 GB",
    "A100 80 GB",
    "H100 SXM",
    "H200 SXM",
    "B200",
)


def main() -> None:
    os.environ["TUI_TRAINER_HOME"] = tempfile.mkdtemp(prefix="profiles-table-")
    os.environ["XDG_CONFIG_HOME"] = os.environ["TUI_TRAINER_HOME"]
    planning.disk_free_bytes = lambda path: None  # type: ignore[assignment]
    print("\n".join(document()))


def document() -> Iterator[str]:
    """The lines of the whole text."""
    yield "# Profiles"
    yield ""
    yield "Made by `python tests/benchmarks/profiles_table.py > profiles/README.md`; not to be edited."
    yield ""
    yield "A recipe sets a task and a model, a hardware profile what suits a machine; settings of yours win over both."
    yield "`tui-trainer profiles` lists them, `tui-trainer profiles NAME` shows one with its comments."
    yield from _overview("Hardware", all_profiles("hardware"), with_match=True)
    yield from _overview("Recipes", all_profiles("recipes"), with_match=False)
    yield ""
    yield "## Plans"
    yield ""
    yield "What `tui-trainer plan` says on each card before a step was measured there: estimates. Rows are"
    yield f"full, {DOCUMENTS:,} documents of them. A step learns from one effective batch; its time is left out where a"
    yield "processor decides it. A machine has 64 GiB of memory of its own."
    for recipe in sorted(set(all_profiles("recipes")) - set(LEFT_OUT)):
        yield from _plans(recipe)


def _overview(title: str, profiles: dict[str, Profile], *, with_match: bool) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    columns = ["profile", "for", *(["matches"] if with_match else []), "what it does", "sources of its numbers"]
    yield from _head(columns)
    for name, profile in sorted(profiles.items()):
        match = [_match_text(profile)] if with_match else []
        yield _row([f"`{name}`", profile.title, *match, profile.summary, profile.source or "ours"])


def _match_text(profile: Profile) -> str:
    match = profile.match
    names = match.get("name", [])
    parts = ["trains on the CPU" if match["device"] == "cpu" else "a GPU"]
    least, below = match.get("capability_at_least"), match.get("capability_below")
    if least:
        parts.append(f"capability {least} to below {below}" if below else f"capability {least} and newer")
    if names:
        shown = [names] if isinstance(names, str) else names
        parts.append("named " + ", ".join(f"`{name}`" for name in shown[:4]) + (", ..." if len(shown) > 4 else ""))
    if "cores_at_most" in match:
        parts.append(f"at most {match['cores_at_most']} cores")
    return "; ".join(parts)


def _plans(recipe: str) -> Iterator[str]:
    model = MODELS.get(recipe)
    yield ""
    yield f"### `{recipe}`" + (f" with `--model {model}`" if model else "")
    yield ""
    yield from _head(["card", "profile", "precision", "rows a step", "micro-batch x accumulation", "memory", "a step"])
    for title, hardware in machines():
        yield _plan_row(title, hardware, recipe, model)


def machines() -> Iterator[tuple[str, Hardware]]:
    """(title, machine) of every card shown, of a Colab session, and of machines that train on their processor."""
    found = {card.label.removesuffix(" GB") if card.title == "V100" else card.title: card for card in CARDS}
    for title in SHOWN:
        yield title, machine_with(found[title], cores=16)
        if title == "T4":
            yield "T4 of Colab", machine_with(found[title], cores=1)
    old = machine_with(found["K80"], cores=16)
    yield "K80, on the CPU", old
    yield "no card", replace(old, gpus=(), driver=None)


def machine_with(card: Card, cores: int) -> Hardware:
    """A machine with this card, nothing else running, and a torch that serves it."""
    machine = Hardware(
        cpu_name="any CPU",
        usable_cores=cores,
        memory_bytes=64 * GIB,
        memory_available_bytes=60 * GIB,
        platform="Linux-x86_64",
        python_version="3.11.7",
        libraries={"torch": "2.15.0", "bitsandbytes": "0.50.2"},
    )
    return with_cards(machine, card)


def _plan_row(title: str, hardware: Hardware, recipe: str, model: str | None) -> str:
    assignments = (f"model.model_name_or_path={model}",) if model else ()
    request = Request(profile=recipe, assignments=assignments)
    loaded = load(request, lambda requested: choose_hardware_profile(requested, hardware))
    profile = loaded.hardware_profile.name if loaded.hardware_profile else "none"
    try:
        plan = planning.make(loaded, hardware, full_rows(loaded))
    except ConfigError as error:
        return _row([title, f"`{profile}`", "", "", f"does not fit: {error.problems[0].message}", "", ""])
    has = hardware.gpus[0].memory_bytes if plan.device == "cuda" else hardware.memory_bytes
    cut = f"{plan.per_device_train_batch_size.value} x {plan.gradient_accumulation_steps.value}"
    rows = f"{plan.effective_batch_size.value}"
    needs = f"{plan.memory_bytes.value / GIB:.1f} of {(has or 0) / GIB:.1f} GiB"
    return _row([title, f"`{profile}`", plan.precision.value, rows, cut, needs, _step_time(plan)])


def full_rows(loaded: LoadedConfig) -> DataFacts:
    """Documents that fill a row each."""
    length = loaded.config.data.max_length
    scratch = loaded.config.model.scratch.vocab_size
    return DataFacts(
        rows=DOCUMENTS,
        eval_rows=DOCUMENTS // 10,
        tokens=DOCUMENTS * length,
        eval_tokens=DOCUMENTS // 10 * length,
        vocabulary=100 if loaded.config.task.type == "char_lm" else scratch,
        exact=True,
        reason="for this table",
        row_tokens=float(length),
        longest_row=length,
    )


def _step_time(plan: planning.Plan) -> str:
    """Empty where the figure is that of the processor under this command."""
    seconds, reason = plan.step_seconds.value, plan.step_seconds.reason
    if plan.device == "cpu" or "numpy" in reason:
        return ""
    return f"{seconds:.2g} s" if seconds >= 0.1 else f"{seconds * 1000:.2g} ms"


def _head(columns: Sequence[str]) -> Iterator[str]:
    yield _row(columns)
    yield _row(["---"] * len(columns))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
