"""A fake NVIDIA driver, and machines made of facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tui_trainer.hardware.facts import Driver, Gpu, Hardware

GIB = 1 << 30


class FakeNvml:
    """Has the functions of pynvml that are used. `errors` maps the name of a function to NVML's error number, or
    (name, card) to the error of one card; `cards` holds what differs from an idle H200. A card with `instances` is
    divided (MIG): their UUIDs, each with its free bytes of 18 GiB."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"NVML says {value}")
            self.value = value

    def __init__(
        self,
        *cards: dict[str, Any],
        errors: Mapping[Any, int] | None = None,
        cuda: int = 13020,
        hang: Event | None = None,
    ) -> None:
        self.cards, self.errors, self.cuda, self.hang = cards, dict(errors or {}), cuda, hang
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda *arguments: self._answer(name, arguments)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self.calls.append(name)
        if self.hang is not None:
            self.hang.wait()
        card = arguments[0] if arguments else None
        for key in (name, (name, card)):
            if key in self.errors:
                raise self.NVMLError(self.errors[key])
        if name == "nvmlDeviceGetMigDeviceHandleByIndex":
            return self._instance(*arguments)
        if not arguments:
            answers = {
                "nvmlInit": None,
                "nvmlSystemGetDriverVersion": "580.65.06",
                "nvmlSystemGetCudaDriverVersion_v2": self.cuda,
                "nvmlDeviceGetCount": len(self.cards),
            }
            return answers[name]
        if isinstance(card, tuple):
            return self._of_instance(name, *card)
        return card if name == "nvmlDeviceGetHandleByIndex" else self._of_card(name, self.cards[card], card)

    def _instance(self, card: int, place: int) -> tuple[int, str]:
        """Places that hold no instance are an error of their own (NVML_ERROR_NOT_FOUND)."""
        found = list(self.cards[card].get("instances", {}))
        if place >= len(found):
            raise self.NVMLError(6)
        return card, found[place]

    def _of_instance(self, name: str, card: int, uuid: str) -> Any:
        """What an instance answers; power, temperature and use are the card's alone (NVML_ERROR_INVALID_ARGUMENT)."""
        answers = {
            "nvmlDeviceGetName": "NVIDIA H200 MIG 1g.18gb",
            "nvmlDeviceGetUUID": uuid,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=18 * GIB, free=self.cards[card]["instances"][uuid]),
        }
        if name not in answers:
            raise self.NVMLError(2)
        return answers[name]

    def _of_card(self, name: str, differs: dict[str, Any], index: int) -> Any:
        card = {"free": 140 * GIB, "total": 141 * GIB, "use": 25, "processes": []} | differs
        return {
            "nvmlDeviceGetName": card.get("name", "NVIDIA H200"),
            "nvmlDeviceGetUUID": card.get("uuid", f"GPU-{index}000"),
            "nvmlDeviceGetCudaComputeCapability": card.get("capability", [9, 0]),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=card["total"], free=card["free"]),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=card["use"]),
            "nvmlDeviceGetTemperature": 41,
            "nvmlDeviceGetPowerUsage": 80_500,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetClockInfo": card.get("clock", 1980),
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": card.get("reasons", 0),
            "nvmlDeviceGetCurrentClocksThrottleReasons": card.get("reasons", 0),
            "nvmlDeviceGetComputeRunningProcesses": card["processes"],
            "nvmlDeviceGetGraphicsRunningProcesses": [],
            "nvmlDeviceGetMigMode": card.get("mig", [int("instances" in card)] * 2),
            "nvmlDeviceGetMaxMigDeviceCount": 7,
        }[name]


@pytest.fixture
def fake_nvml() -> type[FakeNvml]:
    return FakeNvml


@pytest.fixture(autouse=True)
def all_gpus_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def gpu() -> Callable[..., Gpu]:
    """Return `gpu(1, memory_free_bytes=...)`: an idle H200 apart from the given facts."""
    idle = Gpu(
        index=0, name="NVIDIA H200", uuid="GPU-0", capability=(9, 0), memory_bytes=141 * GIB,
        memory_free_bytes=140 * GIB, utilisation_share=0.0, processes=(),
    )  # fmt: skip
    return lambda index=0, **differs: replace(idle, index=index, **differs)


@pytest.fixture
def machine() -> Callable[..., Hardware]:
    """Return `machine(gpus=(...,))`: a healthy machine without GPU apart from the given facts."""
    healthy = Hardware(
        cpu_name="Test CPU", usable_cores=8, physical_cores=8, logical_cores=16, memory_bytes=64 * GIB,
        machine_memory_bytes=64 * GIB, memory_available_bytes=60 * GIB, platform="Linux-x86_64",
        python_version="3.11.7", host="test-box", torch_cuda=(13, 2),
        cpu_flags=frozenset({"sse4_2", "avx2", "avx512f", "avx512_bf16"}),
        libraries={"torch": "2.15.0", "pip": "26.0", "peft": None},
    )  # fmt: skip

    def make(**differs: Any) -> Hardware:
        if differs.get("gpus"):
            differs.setdefault("driver", Driver(version="580.65.06", cuda=(13, 2)))
        return replace(healthy, **differs)

    return make
