"""Fixtures for runs of several processes on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.forked_ranks import Agent, ForkedRanks
from tests.distributed.outcomes import DIES, STOPS, at_step, same
from tui_trainer.launching import torchrun
from tui_trainer.runs.folder import RunFolder


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Groups of processes as forks: `started` lists those of this test, `ends` the exit codes of those that another
    group followed. `prelude(group, rank)` returns Python that runs before a process does."""
    groups = SimpleNamespace(started=[], ends=[], prelude=lambda group, rank: "")

    def start(folder, plan, log, node_rank=0, rendezvous=""):
        number = len(groups.started)
        for earlier in reversed(groups.started):
            if (earlier.killed.parent, earlier.node_rank) == (folder.root, node_rank):
                groups.ends.append([rank.wait(1500) for rank in earlier.ranks])
                break
        begin = partial(ForkedRanks, folder, plan, lambda rank: groups.prelude(number, rank), node_rank, rendezvous)
        agent = Agent(begin, log)
        groups.started.append(agent.ranks)
        return agent

    monkeypatch.setattr(torchrun, "_start_agent", start)
    return groups


@pytest.fixture
def reference_group(forked_ranks: SimpleNamespace, reference_run: Callable[..., RunFolder]) -> Callable[..., RunFolder]:
    """`reference_run` of several processes, which are not counted in `started`."""

    def make(changes: dict[str, Any]) -> RunFolder:
        before = len(forked_ranks.started)
        folder = reference_run(changes)
        del forked_ranks.started[before:]
        return folder

    return make


@pytest.fixture
def stopped_run(tiny_run: Callable[..., Any], forked_ranks: SimpleNamespace) -> Callable[..., RunFolder]:
    """`stopped_run(name, changes)`: the folder of a run that was asked to stop at its fifth step, and has saved."""

    def make(name: str, changes: dict[str, Any]) -> RunFolder:
        number = len(forked_ranks.started)
        forked_ranks.prelude = lambda group, rank: STOPS if group == number else ""
        folder, outcome = tiny_run(name, changes)
        assert outcome.exit_code == 3
        return folder

    return make


@pytest.fixture
def killed_run(
    reference_group: Callable[..., RunFolder], tiny_run: Callable[..., Any], forked_ranks: SimpleNamespace
) -> Callable[..., RunFolder]:
    """`killed_run(changes, rank, before=...)`: the folder of a run that lost a process at its sixth step and ended with
    the same bits as one that did not."""

    def make(changes: dict[str, Any], killed: int, **more: Any) -> RunFolder:
        whole = reference_group(changes)
        forked_ranks.prelude = lambda group, rank: at_step(6, DIES) if (group, rank) == (0, killed) else ""
        folder, outcome = tiny_run("killed", changes, **more)
        assert outcome.exit_code == 0 and len(forked_ranks.started) == 2
        assert same(folder, whole)
        return folder

    return make
