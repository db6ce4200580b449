"""Processes that help the preparing process to read and encode rows.

They are spawned, because a fork of a process with threads can hang. A tokenizer is loaded once, in the preparing
process, and pickled with the reader: loading it imports torch, which would cost each process 4 s and 700 MB.
"""

import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from tui_trainer.data.columns.reader import Reader
from tui_trainer.units import MIB

Task = TypeVar("Task")
Result = TypeVar("Result")

# The imports of a process take as long as the work on BYTES_EACH of data.
DATA_BYTES_PER_PROCESS, MEMORY_BYTES_PER_PROCESS, MOST_PROCESSES = 16 * MIB, 256 * MIB, 32
# Tasks queued for each process, so that it is not idle while a result is used.
_QUEUED_TASKS = 3
_loaded_reader: tuple[Path, Any] = (Path(), None)  # the reader in a helping process, and its file


def useful_process_count(data_bytes: int, cores: int, available_bytes: int) -> int:
    """Return how many processes pay off for this much data, with these cores and this much memory: 1 or more."""
    memory_limit = available_bytes // 2 // MEMORY_BYTES_PER_PROCESS
    return max(1, min(cores, MOST_PROCESSES, data_bytes // DATA_BYTES_PER_PROCESS, memory_limit))


class Processes:
    """A pool of processes, which start at once. A context manager; files for the processes are written to `folder`."""

    def __init__(self, count: int, folder: Path) -> None:
        self._count, self._folder, self._reader_count = count, folder, 0

    def __enter__(self) -> Self:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self._count, context, initializer=_set_up_process)
        for _ in range(self._count):
            self._pool.submit(os.getpid)
        return self

    def __exit__(self, *_: object) -> None:
        # Waits even after an error: a running task may still write to the folder. It takes a second at most.
        self._pool.shutdown(wait=True, cancel_futures=True)

    def map_tasks(
        self, work: Callable[[Any, Task], Result], reader: Reader | None, tasks: Iterable[Task]
    ) -> Iterator[tuple[Task, Result]]:
        """Yield each task with its result, in order. A process runs `work(copy of reader, task)`. Raises its errors."""
        self._reader_count += 1
        path = self._folder / f"reader-{self._reader_count}"
        path.write_bytes(pickle.dumps(reader, protocol=pickle.HIGHEST_PROTOCOL))
        pending_tasks: deque[tuple[Task, Future[Result]]] = deque()
        try:
            for task in tasks:
                pending_tasks.append((task, self._pool.submit(_run_task, path, work, task)))
                if len(pending_tasks) >= _QUEUED_TASKS * self._count:
                    first_task, future = pending_tasks.popleft()
                    yield first_task, future.result()
            while pending_tasks:
                first_task, future = pending_tasks.popleft()
                yield first_task, future.result()
        finally:
            for _, future in pending_tasks:
                future.cancel()


def _set_up_process() -> None:
    """Set up a new process: silent, ended together with its parent, and limited to one core."""
    import multiprocessing
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    null_output = open(os.devnull, "w")  # noqa: PTH123, SIM115  # for the life of the process
    sys.stdout = sys.stderr = null_output
    parent_process = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent_process is not None:
            parent_process.join()
            os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()


def _run_task(path: Path, work: Callable[[Any, Task], Result], task: Task) -> Result:
    global _loaded_reader
    if _loaded_reader[0] != path:
        _loaded_reader = path, pickle.loads(path.read_bytes())
    return work(_loaded_reader[1], task)
