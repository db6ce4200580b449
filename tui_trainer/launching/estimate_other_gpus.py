"""Plans of a config on GPUs that this machine does not have: whether it fits, and how long it takes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tui_trainer.advice.remedies import make_plan
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.data.progress import Progress
from tui_trainer.errors import ConfigError, InputError, name_hint
from tui_trainer.hardware.diagnosis import ASSUMED
from tui_trainer.hardware.facts import Hardware, with_cards
from tui_trainer.hardware.gpu_models import CARDS, Card, plain_name
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import data_facts
from tui_trainer.planning.plan import Plan
from tui_trainer.units import GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class CardPlan:
    """Plan for a GPU. If the config cannot run on the GPU, `plan` is None and `problem` says why.

    `profile` is the GPU's hardware profile. The plan assumes the libraries `missing_libraries`, not installed here."""

    card: Card
    card_count: int
    plan: Plan | None
    problem: str = ""
    profile: str = ""
    missing_libraries: tuple[str, ...] = ()

    def as_values(self) -> dict[str, object]:
        """Return the plan as JSON values, in bytes and seconds."""
        plan = self.plan
        values: dict[str, object] = {"card": self.card.label, "cards": self.card_count}
        values |= {"hardware_profile": self.profile, "assumed_libraries": list(self.missing_libraries)}
        if plan is None:
            return values | {"fits": False, "problem": self.problem}
        return values | {
            "fits": True,
            "device": plan.device,
            "precision": plan.precision.value,
            "effective_batch_size": plan.effective_batch_size.value,
            "effective_batch_size_reason": plan.effective_batch_size.reason,
            "learning_rate": plan.learning_rate.value,
            "per_device_train_batch_size": plan.per_device_train_batch_size.value,
            "gradient_accumulation_steps": plan.gradient_accumulation_steps.value,
            "memory_bytes": plan.memory_bytes.value,
            "card_memory_bytes": self.card.memory_gib * GIB,
            "step_seconds": plan.step_seconds.value,
            "step_seconds_reason": plan.step_seconds.reason,
            "duration_seconds": plan.duration_seconds.value,
        }


def find_cards(names: str) -> list[Card]:
    """Return the GPUs of the catalogue that match one of the names, which are separated by commas.

    `A100` finds three GPUs, `V100 32` one and its PCIe version, `all` every GPU. A name must find one (InputError).
    """
    selected: list[Card] = []
    words_of_card = {card: _words(" ".join((card.title, *card.names, f"{card.memory_gib}gb"))) for card in CARDS}
    for name in filter(None, (part.strip() for part in names.split(","))):
        wanted_words = _words(name)
        matches = [card for card in CARDS if wanted_words == {"all"} or wanted_words <= words_of_card[card]]
        if not matches:
            hint = name_hint(plain_name(name).upper(), dict.fromkeys(card.title for card in CARDS))
            raise InputError(f"there is no GPU {name!r} in the catalogue", hint=hint)
        selected += [card for card in matches if card not in selected]
    if not selected:
        raise InputError("--cards needs names of GPUs, such as T4,RTX 4090,H100", hint="--cards all lists all GPUs")
    return selected


def _words(name: str) -> set[str]:
    """Return the words of a GPU name in lower case: `NVIDIA RTX-4090` has rtx and 4090, `80GB` has 80 and gb."""
    return set(re.findall(r"[a-z0-9]+", re.sub(r"(\d)\s*gi?b\b", r"\1 gb", plain_name(name))))


def plans_for(request: Request, cards: Sequence[Card], progress: Progress | None = None) -> Iterator[CardPlan]:
    """Yield a plan for each GPU, as if this machine had it.

    The plans assume a torch that supports the GPU, the libraries that the config needs, and an empty GPU. Times come
    from the catalogue's rates. Raises InputError for problems of the config itself.
    """
    machine = probe()
    facts = None
    for card in cards:
        loaded, hardware = _loaded_on(request, machine, card)
        needed_libraries = dict.fromkeys(library for _, library in loaded.config.libraries)
        assumed_libraries = tuple(library for library in needed_libraries if machine.libraries.get(library, "") is None)
        # torch for a GPU brings triton.
        version_of_library: dict[str, str | None] = dict.fromkeys((*assumed_libraries, "triton"), ASSUMED)
        version_of_library |= {name: version for name, version in machine.libraries.items() if version}
        hardware = replace(hardware, libraries=version_of_library)
        if facts is None:
            facts = data_facts(loaded, progress)
        profile = loaded.hardware_profile.name if loaded.hardware_profile else ""
        try:
            plan, problem = make_plan(loaded, hardware, facts), ""
        except ConfigError as error:
            first_problem = error.problems[0]
            plan, problem = None, "; ".join(filter(None, (first_problem.message, first_problem.hint)))
        yield CardPlan(
            card=card,
            card_count=len(hardware.gpus),
            plan=plan,
            problem=problem,
            profile=profile,
            missing_libraries=assumed_libraries,
        )


def _loaded_on(request: Request, machine: Hardware, card: Card) -> tuple[LoadedConfig, Hardware]:
    """Return the config for the GPU, and hardware like `machine` with one such GPU for each process of the config."""
    hardware = with_cards(machine, card)
    loaded = load_config(request, hardware=hardware)
    processes = loaded.config.distributed.processes
    return loaded, hardware if processes == "auto" else with_cards(machine, card, processes)


def smallest_that_fits(plans: Sequence[CardPlan]) -> CardPlan | None:
    """Return the plan for the smallest GPU that can train, by memory, then speed; None if no GPU can."""
    rows = [row for row in plans if row.plan is not None and row.plan.device == "cuda"]
    return min(rows, key=lambda row: (row.card.memory_gib, max(row.card.teraflops.known().values())), default=None)
