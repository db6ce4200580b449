"""A plugin of pytest: each test has its line in results.jsonl as soon as it ends.

    pytest -p tests.gpu.noted_tests --results FILE tests/gpu

Tests that passed before, or that this call has tried already, are left out; those that failed before come last. Where a
test has broken the device, all after it would fail: the session ends, and a new one goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.results import append, read

# By value. The first word that is in a test's name ranks it.
BY_VALUE = ("two_packed_rows", "takes_the_kernel", "same_bits", "no_memory_for",
            "what_is_planned", "leaves_the_card_empty", "4_bits", "8_bits", "every_family", "")  # fmt: skip
# The device is gone for the rest of the process after an error of a kernel, not after one of memory.
_BROKEN = ("CUDA error", "AcceleratorError", "CUBLAS_STATUS_EXECUTION_FAILED", "device-side assert")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, required=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    found = read(config.getoption("--results"))
    call = len(found.machines)
    known = {name: test for name, test in found.tests.items() if test.state}
    over = {name for name, test in known.items() if test.state in ("passed", "skipped") or test.call == call}
    chosen = [item for item in items if item.nodeid not in over]
    items[:] = sorted(chosen, key=lambda item: (
        item.nodeid in known, next(n for n, word in enumerate(BY_VALUE) if word in item.nodeid)))  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Notes(config.getoption("--results")))


class _Notes:
    def __init__(self, results: Path) -> None:
        self._results, self._session = results, None

    def pytest_sessionstart(self, session: Any) -> None:
        self._session = session

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        append(self._results, {"test": nodeid, "state": "started"})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        line: dict[str, Any] = {"test": report.nodeid, "state": report.outcome, "seconds": round(report.duration, 2)}
        if report.skipped and isinstance(report.longrepr, tuple):
            line["reason"] = str(report.longrepr[2])[:200]
        if report.failed:
            rows = report.longreprtext.splitlines()
            said = [row for row in rows if row.startswith("E ")] or rows
            line |= {"reason": said[0][:300] if said else "", "error": [row[:300] for row in rows[-10:]]}
            if any(word in report.longreprtext for word in _BROKEN):
                self._session.shouldstop = "the device is broken"
        append(self._results, line)
