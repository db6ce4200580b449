"""Each hardware profile on a machine that fits it, and each recipe on each of those machines."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tui_trainer.config.load import LoadedConfig, Origin, Request, load
from tui_trainer.config.toml_files import all_profiles
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.diagnosis import training_device
from tui_trainer.hardware.facts import Driver, Gpu, Hardware
from tui_trainer.hardware.gpu_models import CARDS, find_card
from tui_trainer.models.catalogue import find_catalogue_entry
from tui_trainer.models.shape import shape_of
from tui_trainer.planning import plan as planning
from tui_trainer.planning.hardware_match import choose_hardware_profile, match_problems, specificity, why_it_matches
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.worker import asking

pytestmark = pytest.mark.dry_run

MIB = 1 << 20
GIB = 1 << 30
# As drivers report them: name, compute capability, memory in MiB; and the profile that must win.
DRIVERS_CARDS = [
    ("Tesla K80", (3, 7), 11441, "k80"),
    ("NVIDIA GeForce GTX 1080 Ti", (6, 1), 11264, "gtx-10xx-16xx"),
    ("Tesla P100-PCIE-16GB", (6, 0), 16280, "gtx-10xx-16xx"),
    ("Tesla P100-SXM2-16GB", (6, 0), 16280, "gtx-10xx-16xx"),
    ("Tesla V100-SXM2-16GB", (7, 0), 16384, "v100"),
    ("Tesla V100-SXM2-32GB", (7, 0), 32768, "v100"),
    ("Tesla V100-PCIE-16GB", (7, 0), 16384, "v100"),
    ("Tesla V100-PCIE-32GB", (7, 0), 32768, "v100"),
    ("Tesla T4", (7, 5), 15360, "t4"),
    ("NVIDIA GeForce GTX 1660", (7, 5), 6144, "gtx-10xx-16xx"),
    ("NVIDIA GeForce RTX 2080 Ti", (7, 5), 11264, "rtx-20xx"),
    ("NVIDIA GeForce RTX 3060", (8, 6), 12288, "rtx-30xx"),
    ("NVIDIA GeForce RTX 3080", (8, 6), 10240, "rtx-30xx"),
    ("NVIDIA GeForce RTX 3090", (8, 6), 24576, "rtx-30xx"),
    ("NVIDIA A10", (8, 6), 23028, "rtx-30xx"),
    ("NVIDIA A40", (8, 6), 46068, "rtx-30xx"),
    ("NVIDIA RTX A5000", (8, 6), 24564, "rtx-30xx"),
    ("NVIDIA RTX A6000", (8, 6), 49140, "rtx-30xx"),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 40960, "a100"),
    ("NVIDIA A100-SXM4-80GB", (8, 0), 81920, "a100"),
    ("NVIDIA A100 80GB PCIe", (8, 0), 81920, "a100"),
    ("NVIDIA L4", (8, 9), 23034, "rtx-40xx-50xx"),
    ("NVIDIA L40S", (8, 9), 46068, "rtx-40xx-50xx"),
    ("NVIDIA GeForce RTX 4070", (8, 9), 12282, "rtx-40xx-50xx"),
    ("NVIDIA GeForce RTX 4080 SUPER", (8, 9), 16376, "rtx-40xx-50xx"),
    ("NVIDIA GeForce RTX 4090", (8, 9), 24564, "rtx-40xx-50xx"),
    ("NVIDIA GeForce RTX 5090", (12, 0), 32607, "rtx-40xx-50xx"),
    ("NVIDIA H100 PCIe", (9, 0), 81559, "h100-h200"),
    ("NVIDIA H100 80GB HBM3", (9, 0), 81559, "h100-h200"),
    ("NVIDIA H200", (9, 0), 143771, "h100-h200"),
    ("NVIDIA B200", (10, 0), 183359, "h100-h200"),
]
UNLISTED_CARDS = [
    ("Tesla K40m", (3, 5), 11441, "cpu"),
    ("NVIDIA GeForce GTX 960", (5, 2), 4096, "gtx-10xx-16xx"),
    ("Tesla M60", (5, 2), 8192, "gtx-10xx-16xx"),
    ("Quadro P4000", (6, 1), 8192, "gtx-10xx-16xx"),
    ("NVIDIA TITAN Xp", (6, 1), 12288, "gtx-10xx-16xx"),
    ("NVIDIA GeForce GTX 1650 Ti", (7, 5), 4096, "gtx-10xx-16xx"),
    ("NVIDIA T1000 8GB", (7, 5), 8192, "gtx-10xx-16xx"),
    ("NVIDIA GeForce MX450", (7, 5), 2048, "gtx-10xx-16xx"),
    ("NVIDIA TITAN V", (7, 0), 12288, "v100"),
    ("NVIDIA TITAN RTX", (7, 5), 24576, "rtx-20xx"),
    ("Quadro RTX 5000", (7, 5), 16384, "rtx-20xx"),
    ("NVIDIA GeForce MX570", (8, 6), 2048, "rtx-30xx"),
    ("NVIDIA GeForce RTX 3050 Laptop GPU", (8, 6), 4096, "rtx-30xx"),
    ("Orin", (8, 7), 30697, "rtx-30xx"),
    ("NVIDIA A30", (8, 0), 24576, "a100"),
    ("NVIDIA RTX 6000 Ada Generation", (8, 9), 49140, "rtx-40xx-50xx"),
    ("NVIDIA GeForce RTX 5070 Ti", (12, 0), 16303, "rtx-40xx-50xx"),
    ("NVIDIA GB10", (12, 1), None, "rtx-40xx-50xx"),
    ("NVIDIA GH200 480GB", (9, 0), 97871, "h100-h200"),
    ("NVIDIA H100 80GB HBM3", (9, 0), None, "h100-h200"),
    ("NVIDIA B300 SXM6 AC", (10, 3), 275040, "h100-h200"),
]
MACHINES = [*DRIVERS_CARDS, *UNLISTED_CARDS]
RECIPES = sorted(all_profiles("recipes"))
HARDWARE = sorted(all_profiles("hardware"))
# Subjects of recipes: a hardware profile, which takes precedence, must not set them.
OF_THE_RECIPE = ("task.", "model.model", "model.init", "model.scratch", "data.", "tuning.", "evaluation.", "output.")
_TRAINING = "num_train_epochs max_steps effective learning lr_ warmup weight max_grad adam".split()
OF_THE_RECIPE += tuple(f"training.{name}" for name in _TRAINING)

PRECISIONS = dict.fromkeys(("v100", "t4", "colab", "rtx-20xx"), "fp16")
PRECISIONS |= dict.fromkeys(("gtx-10xx-16xx", "cpu", "k80"), "fp32")


def machine(name: str, capability: tuple[int, int], mebibytes: int | None, cores: int = 8) -> Hardware:
    """Return a machine with one idle card and, if there is one, a torch built for it."""
    memory = None if mebibytes is None else mebibytes * MIB
    free = None if memory is None else memory - 400 * MIB
    # The last CUDA for Pascal and Volta is 12, the first for Blackwell 12.8.
    cuda = (12, 6) if capability < (7, 5) else (13, 0)
    card = Gpu(index=0, name=name, capability=capability, memory_bytes=memory, memory_free_bytes=free)
    return Hardware(
        cpu_name="Test CPU", usable_cores=cores, memory_bytes=64 * GIB, memory_available_bytes=60 * GIB,
        platform="Linux-x86_64", python_version="3.11.7", cpu_flags=frozenset({"avx2"}), gpus=(card,), torch_cuda=cuda,
        driver=Driver(version="580.65.06", cuda=(13, 0)),
        libraries={"torch": "2.15.0", "pip": "26.0", "bitsandbytes": "0.50.2"},
    )  # fmt: skip


COLAB = machine("Tesla T4", (7, 5), 15360, cores=1)
NO_CARD = replace(machine("", (9, 0), 1), gpus=(), driver=None, torch_cuda=None)


def loaded_on(hardware: Hardware, recipe: str = "", assignments: tuple[str, ...] = ()) -> LoadedConfig:
    """Load a recipe on a machine, as the program does."""
    request = Request(profile=recipe, assignments=assignments)
    return load(request, lambda requested: choose_hardware_profile(requested, hardware))


def machine_of(profile: str) -> Hardware:
    """Return a machine that a hardware profile is for."""
    named = {"colab": COLAB, "cpu": NO_CARD}
    return named[profile] if profile in named else machine(*next(row for row in MACHINES if row[3] == profile)[:3])


def test_every_card_of_the_catalogue_is_among_the_machines():
    found = [find_card(name, mebibytes * MIB) for name, _, mebibytes, _ in DRIVERS_CARDS]
    assert found == list(CARDS)
    assert [card.capability for card in CARDS] == [capability for _, capability, _, _ in DRIVERS_CARDS]


def test_each_card_gets_the_expected_profile_and_no_other_is_as_specific(subtests):
    for name, capability, mebibytes, expected in MACHINES:
        with subtests.test(f"{name}, {mebibytes} MiB"):
            hardware = machine(name, capability, mebibytes)
            assert training_device(hardware, hardware.gpus[0])[0] == ("cpu" if expected in ("k80", "cpu") else "cuda")
            chosen, reason = choose_hardware_profile("auto", hardware)
            assert chosen.name == expected
            assert name in reason or expected == "cpu"
            matching = [one for one in all_profiles("hardware").values() if why_it_matches(one, hardware)]
            closest = max(map(specificity, matching))
            assert [one.name for one in matching if specificity(one) == closest] == [expected]


def test_a_t4_with_few_cores_gets_the_colab_profile():
    assert choose_hardware_profile("auto", COLAB)[0].name == "colab"
    assert choose_hardware_profile("auto", replace(COLAB, usable_cores=2))[0].name == "colab"
    assert choose_hardware_profile("auto", replace(COLAB, usable_cores=4))[0].name == "t4"
    assert "1 core" in choose_hardware_profile("auto", COLAB)[1]


def test_a_k80_is_reported_as_too_old_and_trains_on_the_cpu():
    hardware = machine_of("k80")
    chosen, why = choose_hardware_profile("auto", hardware)
    assert "CUDA does not support it" in chosen.title and "CPU" in chosen.title
    assert why == "trains on the CPU (Test CPU, 8 cores), because Tesla K80 cannot be used"
    assert "no longer supports" in training_device(hardware, hardware.gpus[0])[1]
    assert chosen.values == all_profiles("hardware")["cpu"].values


def test_a_machine_without_a_usable_card_gets_the_profile_of_the_cpu():
    assert choose_hardware_profile("auto", NO_CARD)[0].name == "cpu"
    not_served = replace(machine("Tesla V100-SXM2-32GB", (7, 0), 32768), torch_cuda=(13, 0))
    assert choose_hardware_profile("auto", not_served)[0].name == "cpu"


def test_hardware_profiles_have_a_source_and_do_not_set_what_recipes_are_about(subtests):
    assert {*(row[3] for row in DRIVERS_CARDS), "colab", "cpu"} == set(HARDWARE)
    for name in HARDWARE:
        with subtests.test(name):
            profile, hardware = all_profiles("hardware")[name], machine_of(name)
            assert match_problems(profile) == []
            assert profile.title and profile.summary and profile.source
            loaded = loaded_on(hardware)
            assert loaded.hardware_profile == profile
            keys = [key for key, layer in loaded.layers.items() if layer.origin is Origin.HARDWARE]
            assert keys and [key for key in keys if key.startswith(OF_THE_RECIPE)] == []
            training = loaded.config.training
            # 16 bits gain nothing on Pascal; elsewhere the card decides.
            assert training.mixed_precision == ("no" if name == "gtx-10xx-16xx" else "auto")
            if name not in ("cpu", "k80"):
                assert training.tf32 == (hardware.gpus[0].capability >= (8, 0)) and not training.torch_compile


def test_recipes_have_a_source_and_leave_micro_batch_and_precision_to_the_machine(subtests):
    of_the_machine = ("per_device_train_batch_size", "gradient_accumulation_steps", "mixed_precision", "tf32", "optim")
    for name in RECIPES:
        with subtests.test(name):
            recipe, loaded = all_profiles("recipes")[name], loaded_on(NO_CARD, name)
            assert recipe.title and recipe.summary and (recipe.source or name == "quickstart")
            written = {key for key, layer in loaded.layers.items() if layer.origin is Origin.RECIPE}
            assert written.isdisjoint({f"training.{key}" for key in of_the_machine})
            assert "training.effective_batch_size" in written


def test_a_recipe_needs_no_download_or_asks_for_the_users_own_data(subtests):
    for name in RECIPES:
        with subtests.test(name):
            config = loaded_on(NO_CARD, name).config
            model = config.model.model_name_or_path
            if config.task.type == "char_lm" or config.model.init == "scratch":
                assert not model and config.data.path.startswith("sample:")
                continue
            assert config.data.path == ""
            if model:
                fields = find_catalogue_entry(model).config
                positions = fields.get("max_position_embeddings", fields.get("n_positions"))
                assert config.data.max_length <= (positions or shape_of(fields).max_position_embeddings)


def test_gradient_checkpointing_of_a_recipe_is_turned_off_only_on_large_cards(subtests):
    for name in HARDWARE:
        with subtests.test(name):
            training = loaded_on(machine_of(name), "llama-8b-lora").config.training
            assert training.gradient_checkpointing == (name not in ("a100", "h100-h200"))
            assert training.effective_batch_size == 8
            assert loaded_on(machine_of(name), "quickstart").config.training.gradient_checkpointing == (
                name == "gtx-10xx-16xx"
            )


def test_gradient_checkpointing_of_a_recipe_stays_if_the_run_does_not_fit_without():
    """A 24B model in 4 bits needs 44 GiB without checkpointing; the A100 has 40."""
    hardware = machine_of("a100")
    loaded = loaded_on(hardware, "mistral-small-qlora")
    assert not loaded.config.training.gradient_checkpointing
    plan = planning.make(loaded, hardware, FACTS)
    assert plan.config.training.gradient_checkpointing and plan.training_setup.gradient_checkpointing
    assert "gradient checkpointing as in the recipe" in plan.hardware_reason
    asked = loaded_on(hardware, "mistral-small-qlora", ("training.gradient_checkpointing=false",))
    with pytest.raises(ConfigError, match="memory"):
        planning.make(asked, hardware, FACTS)


FACTS = DataFacts(
    rows=2000, eval_rows=200, tokens=2_000_000, eval_tokens=200_000, vocabulary=100, exact=True, reason="made up",
    row_tokens=1000.0, longest_row=4000,
)  # fmt: skip
# The recipe that names no model gets this one.
ANY_MODEL = ("model.model_name_or_path=HuggingFaceTB/SmolLM2-360M",)
# 16 GB of weights on cards of 11 to 16 GB.
FOR_16_BITS = ("gtx-10xx-16xx", "v100", "t4", "colab", "rtx-20xx", "rtx-30xx")
TOO_LARGE = {(f"llama-8b-{way}", name) for way in ("lora", "dpo-lora") for name in FOR_16_BITS}
# In 4 bits they fit cards of 11 GB that compute in 16 bits; 14.7 billion weights take a card of 16 GB.
# Gemma fits in 32 bits too, by 0.1 GiB.
TOO_LARGE |= {(f"{model}-qlora", "gtx-10xx-16xx") for model in ("llama-8b", "qwen", "phi")}
TOO_LARGE |= {("phi-qlora", name) for name in ("rtx-20xx", "rtx-30xx")}
# Gemma 3 is not computed in fp16, and takes 17 GB in fp32.
TOO_LARGE |= {("gemma-3-4b-lora", name) for name in ("gtx-10xx-16xx", "v100", "t4", "colab", "rtx-20xx")}
# 24 billion weights in 4 bits fit 24 GB with checkpointing.
FOR_24_GB = ("gtx-10xx-16xx", "v100", "t4", "colab", "rtx-20xx", "rtx-30xx")
TOO_LARGE |= {("mistral-small-qlora", name) for name in FOR_24_GB}
TOO_LARGE |= {("qwen3-vl-4b-lora", "gtx-10xx-16xx")}

# T5 passes 65,504 inside.
OVERFLOW_IN_FP16 = ("t5-summarisation", "flan-t5-qa", "signature-summaries")


@pytest.fixture(autouse=True)
def no_worker(monkeypatch):
    """Fail if a plan asks a worker: what first plans ask is shipped (`tests/ship_answers.py` writes it)."""
    monkeypatch.setattr(asking.Worker, "ask", lambda *asked, **_: pytest.fail(f"not shipped: {asked[1:3]}"))


# Each recipe and each profile once.
SOME_PAIRS = [(recipe, HARDWARE[place % len(HARDWARE)]) for place, recipe in enumerate(RECIPES)]
# And what does not fit, with more profiles for each recipe; `slow`: all.
MORE_PAIRS = sorted(
    TOO_LARGE | {(recipe, HARDWARE[(place + 6) % len(HARDWARE)]) for place, recipe in enumerate(RECIPES)}
)


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param(SOME_PAIRS, id="some"),
        pytest.param(MORE_PAIRS, id="more", marks=pytest.mark.full),
        pytest.param(list(product(RECIPES, HARDWARE)), id="all", marks=pytest.mark.slow),
    ],
)
def test_recipes_are_planned_on_the_machines_of_hardware_profiles(pairs, subtests):
    for recipe, name in pairs:
        with subtests.test(f"{recipe} on {name}"):
            check_plan(recipe, name)


def check_plan(recipe, name):
    hardware = machine_of(name)
    loaded = loaded_on(hardware, recipe, ANY_MODEL if recipe == "finetune" else ())
    on_card = name not in ("cpu", "k80")
    if (recipe, name) in TOO_LARGE:
        with pytest.raises(ConfigError, match="memory"):
            planning.make(loaded, hardware, FACTS)
        return
    if recipe.endswith("-qlora") and not on_card:
        with pytest.raises(ConfigError, match="needs a GPU"):
            planning.make(loaded, hardware, FACTS)
        return
    plan = planning.make(loaded, hardware, FACTS)
    assert (plan.recipe, plan.hardware_profile, plan.device) == (recipe, name, "cuda" if on_card else "cpu")
    wanted = PRECISIONS.get(name, "bf16")
    assert plan.precision.value == ("fp32" if wanted == "fp16" and recipe in OVERFLOW_IN_FP16 else wanted)
    cut = plan.per_device_train_batch_size.value * plan.gradient_accumulation_steps.value
    written = loaded.config.training.effective_batch_size
    assert cut >= plan.effective_batch_size.value == plan.config.training.effective_batch_size
    assert plan.effective_batch_size.value == written or (written == "auto" and plan.total_steps.value >= 300)
    memory = hardware.gpus[0].memory_bytes if on_card else hardware.memory_bytes
    assert 0 < plan.memory_bytes.value <= memory
    assert plan.step_seconds.value > 0


@pytest.mark.full
def test_a_larger_card_takes_more_rows_at_once(subtests):
    for name in sorted(set(HARDWARE) - {"cpu", "k80"}):
        with subtests.test(name):
            rows = []
            for size in (11 * GIB, 24 * GIB, 128 * GIB):
                card = replace(machine_of(name).gpus[0], memory_bytes=size, memory_free_bytes=size)
                hardware = replace(machine_of(name), gpus=(card,))
                plan = planning.make(loaded_on(hardware, "qwen-lora"), hardware, FACTS)
                rows.append(plan.per_device_train_batch_size.value)
            assert rows == sorted(rows) and rows[0] < rows[-1] == 8
