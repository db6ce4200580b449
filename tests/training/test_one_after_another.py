"""Several runs in one process: none leaves its model, memory or settings to the next."""

from __future__ import annotations

import gc
import os
import weakref
from types import SimpleNamespace

import pytest
import torch
from transformers.integrations import sdpa_attention
from transformers.utils import logging as transformers_logging

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tests.trained_runs import stopping_after
from tui_trainer.advice import remedies
from tui_trainer.cli import main
from tui_trainer.config.sections import Config
from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from tui_trainer.hardware.environment import KERNELS_KEPT
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.planning.attention import CUDNN, EFFICIENT, FLASH, NOT_PLANNED, Attention
from tui_trainer.planning.automatic_values import TrainingDevice, precision_problems
from tui_trainer.runs.events import StepDone
from tui_trainer.training import components, process
from tui_trainer.training.components import Components
from tui_trainer.training.process import settings_of
from tui_trainer.training.session import Session

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture
def models(monkeypatch):
    """Weak references to the model and the optimizer of each run."""
    found: list[weakref.ref] = []
    init = Components.__init__

    def remember(self, *arguments):
        init(self, *arguments)
        found.extend((weakref.ref(self.model), weakref.ref(self.optimizer.torch_optimizer)))

    monkeypatch.setattr(Components, "__init__", remember)
    return found


@pytest.fixture
def without_collector(monkeypatch):
    """Make the garbage collector do nothing, so that a model in a reference cycle stays."""
    gc.collect()
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
    gc.disable()
    yield
    gc.enable()


def fail_at_third_pass(monkeypatch):
    plain_loss, calls = NextTokenLoss.__call__, []

    def broken(self, batch):
        calls.append(1)
        loss = plain_loss(self, batch)
        if len(calls) == 3:
            raise KeyError("in mid-step")
        return loss

    monkeypatch.setattr(NextTokenLoss, "__call__", broken)


def stop_after_third_step(monkeypatch):
    monkeypatch.setattr(Session, "take_step", stopping_after(3))


@pytest.mark.parametrize(
    ("prepare_end", "expected"),
    [
        pytest.param(lambda monkeypatch: None, EXIT_DONE, id="finished", marks=pytest.mark.full),
        pytest.param(fail_at_third_pass, EXIT_FAILED, id="failed"),
        pytest.param(stop_after_third_step, EXIT_STOPPED, id="stopped", marks=pytest.mark.full),
    ],
)
def test_a_run_leaves_no_model_and_no_optimizer_in_memory(
    tiny_run, models, without_collector, monkeypatch, prepare_end, expected
):
    prepare_end(monkeypatch)
    _, outcome = tiny_run("over", {"dataloader.num_workers": 1, "checkpoint.save_steps": 5})
    assert outcome.exit_code == expected, outcome
    assert len(models) == 2
    assert [reference() for reference in models] == [None, None]


@pytest.mark.full
def test_a_run_with_an_adapter_leaves_no_model_in_memory(tiny_run, models, tmp_path):
    """peft and transformers may make cycles of their own; the run collects them itself."""
    folder = save_tiny_model(tmp_path / "llama", "llama")
    changes = {"task.type": "causal_lm", "model.model_name_or_path": folder, "model.init": "pretrained",
               "tuning.method": "lora", "training.max_steps": 2, "logging.sample_steps": 1}  # fmt: skip
    gc.disable()
    try:
        _, outcome = tiny_run("adapted", changes)
        assert outcome.exit_code == EXIT_DONE, outcome
        assert [reference() for reference in models] == [None, None]
    finally:
        gc.enable()


@pytest.mark.full
def test_the_peak_of_a_run_is_its_own(tiny_run, without_collector, monkeypatch):
    ballast_bytes = 200 * 2**20
    take = Session.take_step

    def take_more(self, step):
        if self.job.folder.name == "large" and step == 1:
            self.ballast = torch.ones(ballast_bytes // 4)
        take(self, step)

    monkeypatch.setattr(Session, "take_step", take_more)
    peaks = {}
    for name in ("large", "small"):
        folder, outcome = tiny_run(name, {"training.max_steps": 2})
        assert outcome.exit_code == EXIT_DONE
        peaks[name] = max(e.peak_memory_bytes for e in read_all(folder.journal) if isinstance(e, StepDone))
    assert peaks["small"] < peaks["large"] - ballast_bytes // 2


# Settings of the process ----------------------------------------------------------------------------------------------


def settings() -> dict[str, object]:
    return {
        "threads": torch.get_num_threads(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "only warned": torch.is_deterministic_algorithms_warn_only_enabled(),
        "dtype": torch.get_default_dtype(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32),
        "attention": (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()),
        "verbosity": transformers_logging.get_verbosity(),
        "progress bars": transformers_logging.is_progress_bar_enabled(),
        "tokenizers": os.environ.get("TOKENIZERS_PARALLELISM"),
        "cards": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


@pytest.fixture
def seen(monkeypatch):
    """The settings of the process in the first step of each run."""
    found: dict[str, dict[str, object]] = {}
    take = Session.take_step

    def take_and_look(self, step):
        found.setdefault(self.job.folder.name, settings())
        take(self, step)

    monkeypatch.setattr(Session, "take_step", take_and_look)
    return found


@pytest.fixture
def as_on_a_card(monkeypatch):
    """`as_on_a_card(True)`: plans name a GPU, and the run computes on the CPU."""
    make = remedies.planning.make

    def on_a_card(switched_on: bool) -> None:
        changes = {"device": "cuda", "gpu_uuid": "GPU-of-the-test"} if switched_on else {}
        monkeypatch.setattr(remedies.planning, "make", lambda *a, **k: make(*a, **k).model_copy(update=changes))
        for module in (components, process):
            monkeypatch.setattr(module, "device_of", lambda plan: torch.device("cpu"))

    return on_a_card


def test_each_run_has_its_own_process_settings_and_restores_them(tiny_run, seen, as_on_a_card, monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before = settings()
    try:
        as_on_a_card(True)
        _, outcome = tiny_run("strict", {"training.deterministic": "true"})
        assert outcome.exit_code == EXIT_DONE, outcome
        _, outcome = tiny_run("quick", {"training.tf32": "true"})
        assert outcome.exit_code == EXIT_DONE, outcome
        as_on_a_card(False)
        _, outcome = tiny_run("plain")
        assert outcome.exit_code == EXIT_DONE, outcome
        after = settings()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
    assert [seen[name]["deterministic"] for name in ("strict", "quick", "plain")] == [True, False, False]
    assert [seen[name]["matmul precision"] for name in ("strict", "quick", "plain")] == ["highest", "high", "highest"]
    # With `warn_only` the attention kernels of torch would keep a backward pass that differs from run to run.
    assert not seen["strict"]["only warned"]
    assert after == before


@pytest.mark.full
def test_a_failed_run_restores_the_process_settings(tiny_run, seen, as_on_a_card, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fail_at_third_pass(monkeypatch)
    before = settings()
    as_on_a_card(True)
    try:
        _, outcome = tiny_run("strict", {"training.deterministic": "true"})
        after = settings()
    finally:
        torch.use_deterministic_algorithms(False)
    assert outcome.exit_code == EXIT_FAILED and seen["strict"]["deterministic"]
    assert after == before


def test_environment_variables_of_libraries_are_set_when_the_program_starts(monkeypatch, capsys):
    for name in (WORKSPACE, "GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "3")
    assert main(["--version"]) == 0
    assert os.environ[WORKSPACE] == ":4096:8"
    assert os.environ["GOMP_SPINCOUNT"]
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == str(KERNELS_KEPT)
    assert os.environ["LRU_CACHE_CAPACITY"] == "3", "a value of the user stays"
    monkeypatch.setenv(WORKSPACE, ":16:8")
    assert main(["--version"]) == 0
    assert os.environ[WORKSPACE] == ":16:8", "a value of the user stays"


def test_a_deterministic_run_is_refused_if_the_environment_configures_cublas_differently(tiny_config, monkeypatch):
    card = Gpu(index=0, name="NVIDIA L4", capability=(8, 9), memory_bytes=2**34, memory_free_bytes=2**34)
    target = TrainingDevice(device="cuda", reason="", gpu=card)
    machine = Hardware(
        cpu_name="Test CPU", usable_cores=2, memory_bytes=2**36, memory_available_bytes=2**36, platform="Linux",
        python_version="3.11", gpus=(card,),
    )  # fmt: skip
    strict, plain = (tiny_config(word, {"training.deterministic": word}) for word in ("true", "false"))
    for value, refused in ((":0:0", True), (":4096:2:16:8", True), (":16:8", False), (":4096:8", False)):
        monkeypatch.setenv(WORKSPACE, value)
        problems = precision_problems(strict, machine, target)
        assert bool(problems) == refused, value
        if refused:
            assert (problems[0].key, problems[0].where) == ("training.deterministic", "--set")
            assert WORKSPACE in problems[0].message and value in problems[0].message and ":4096:8" in problems[0].hint
    monkeypatch.setenv(WORKSPACE, ":0:0")
    assert precision_problems(plain, machine, target) == []
    assert precision_problems(strict, machine, TrainingDevice(device="cpu", reason="", gpu=None)) == []


def test_the_attention_kernel_of_a_run_is_that_of_its_plan_and_is_restored():
    """The plan decides about cuDNN's kernel, and whether SDPA gets fewer heads of keys than of queries."""
    rows = [
        (NOT_PLANNED, False, True),
        (Attention(kernel=CUDNN, reason="all rows are of one width"), True, True),
        (Attention(kernel=FLASH, reason="widths vary"), False, True),
        (Attention(kernel=EFFICIENT, reason="fp32", repeats_keys=True), False, False),
    ]
    threads, key = SimpleNamespace(value=torch.get_num_threads()), torch.zeros(1, 2, 3, 8)
    before = torch.backends.cuda.cudnn_sdp_enabled(), sdpa_attention.use_gqa_in_sdpa
    for attention, cudnn, shares in rows:
        with settings_of(SimpleNamespace(config=Config(), device="cpu", threads=threads, attention=attention)):
            assert torch.backends.cuda.cudnn_sdp_enabled() == cudnn, attention
            assert sdpa_attention.use_gqa_in_sdpa(None, key, key) == shares, attention
        assert before == (torch.backends.cuda.cudnn_sdp_enabled(), sdpa_attention.use_gqa_in_sdpa)
