"""A plugin of pytest: each test of a group has its line in results.jsonl as soon as it ends.

    pytest -p tests.gpu.noted_tests --results FILE --group NAME tests/gpu

Tests that passed before, or that this call has tried already, are left out; those that failed before come last. Where a
test has broken the device, all after it would fail: the session ends, and a new one goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.results import append, read

# By value. The first group that has a word of a test's name has the test; what is compiled is slow, and comes last.
GROUPS = {
    "compile": ("compile",),
    "attention": ("attention_by_lengths", "two_packed_rows", "takes_the_kernel"),
    "resume": ("same_bits", "resumed_run"),
    "memory": ("no_memory_for", "what_is_planned", "takes_less_memory", "leaves_the_card_empty"),
    "4 and 8 bits": ("4_bits", "8_bits"),
    "families": ("every_family",),
    "others": ("",),
}
# The device is gone for the rest of the process after an error of a kernel, not after one of memory.
_BROKEN = ("CUDA error", "AcceleratorError", "CUBLAS_STATUS_EXECUTION_FAILED", "device-side assert")


def group_of(test: str) -> str:
    name = test.rpartition("::")[2]
    return next(group for group, words in GROUPS.items() if any(word in name for word in words))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, required=True)
    parser.addoption("--group", choices=GROUPS, required=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    found = read(config.getoption("--results"))
    call = len(found.machines)
    known = {name: test for name, test in found.tests.items() if test.state}
    over = {name for name, test in known.items() if test.state in ("passed", "skipped") or test.call == call}
    words = GROUPS[config.getoption("--group")]
    chosen = [x for x in items if x.nodeid not in over and group_of(x.nodeid) == config.getoption("--group")]
    value = {x.nodeid: next(n for n, word in enumerate(words) if word in x.nodeid) for x in chosen}
    items[:] = sorted(chosen, key=lambda item: (item.nodeid in known, value[item.nodeid]))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Notes(config.getoption("--results")))


class _Notes:
    def __init__(self, results: Path) -> None:
        self._results = results
        self._session: Any = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
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
