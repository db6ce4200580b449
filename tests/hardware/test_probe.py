"""Facts of the machine read from files: driver, cgroups, processor, disks, libraries."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from threading import Event

import pytest

from tui_trainer.files.hub_layout import cache_folder
from tui_trainer.hardware import libraries, processor
from tui_trainer.hardware import nvml as signs
from tui_trainer.hardware import storage as places
from tui_trainer.hardware.cgroup import CgroupLimits, memory_left, read_limits
from tui_trainer.hardware.probe import disk_free_bytes, probe, read_hardware


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_look_at_this_machine_fills_every_field():
    hardware = read_hardware()
    assert 1 <= hardware.usable_cores <= hardware.logical_cores
    assert 0 < hardware.memory_available_bytes <= hardware.memory_bytes <= hardware.machine_memory_bytes
    assert hardware.host and hardware.libraries["torch"]
    assert hardware.libraries.keys() >= {"transformers", "peft", "bitsandbytes", "flash-attn"}
    assert [place.label for place in hardware.places] == ["runs", "prepared data", "model cache", "temporary"]
    assert probe() is probe()


@pytest.mark.full
def test_a_look_at_the_machine_imports_no_heavy_library():
    code = """
import sys
from tui_trainer.hardware.probe import read_hardware
hardware = read_hardware()
heavy = {"torch", "transformers", "pynvml"} & set(sys.modules)
assert hardware.driver is not None or not heavy, heavy
assert not heavy - {"pynvml"}, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_driver_is_recognised_by_its_files(tmp_path):
    assert not signs.has_driver(tmp_path, {})
    for number, sign in enumerate(("proc/driver/nvidia/version", "dev/nvidiactl", "usr/lib/wsl/lib/libnvidia-ml.so.1")):
        assert signs.has_driver(write(tmp_path / str(number), {sign: ""}), {}), sign
    folder = write(tmp_path / "own", {"libnvidia-ml.so.1": ""})
    assert signs.has_driver(tmp_path / "none", {"LD_LIBRARY_PATH": f"/nowhere:{folder}"})


def test_nvidia_cards_on_the_pci_bus_are_counted_without_a_driver(tmp_path):
    assert signs.nvidia_pci_devices(tmp_path) is None
    bus = "sys/bus/pci/devices"
    for name, vendor, kind in (
        ("h200", "0x10de", "0x030200"),
        ("its sound", "0x10de", "0x040300"),
        ("vga", "0x10de", "0x030000"),
        ("intel", "0x8086", "0x030000"),
    ):
        write(tmp_path, {f"{bus}/{name}/vendor": f"{vendor}\n", f"{bus}/{name}/class": f"{kind}\n"})
    assert signs.nvidia_pci_devices(tmp_path) == 2


def closed_folder(monkeypatch, folder: Path) -> None:
    """Let stat fail inside a folder, as for another user: the tests may run as root, who may read everything."""
    real = Path.stat

    def stat(path, **options):
        if folder in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)


@pytest.mark.full
def test_files_in_a_closed_folder_count_as_missing(monkeypatch, tmp_path):
    closed = write(tmp_path, {"closed/libnvidia-ml.so.1": "", "closed/runs/x": ""}) / "closed"
    assert signs.has_driver(tmp_path / "none", {"LD_LIBRARY_PATH": str(closed)})
    closed_folder(monkeypatch, closed)
    assert not signs.has_driver(tmp_path / "none", {"LD_LIBRARY_PATH": str(closed)})
    assert places.nearest_existing(closed / "runs" / "x") == closed
    assert places.read_place("runs", closed / "runs").free_bytes > 0


def test_the_tightest_limit_of_nested_cgroups_counts(tmp_path):
    assert read_limits(tmp_path / "none") == CgroupLimits()
    unlimited = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/cpu.max": "max 100000"}
    assert read_limits(write(tmp_path / "unlimited", unlimited)) == CgroupLimits()
    groups = {
        "cgroup.controllers": "cpu memory",
        "job/memory.max": "1000",
        "job/memory.current": "600",
        "job/memory.stat": "anon 400\ninactive_file 150\n",
        "job/step/memory.max": "max",
        "job/step/memory.current": "10",
        "job/step/cpu.max": "150000 100000",
        "job/step/cpu.stat": "usage_usec 2500000\n",
    }
    files = {f"sys/fs/cgroup/{name}": text for name, text in groups.items()}
    found = read_limits(write(tmp_path / "nested", {"proc/self/cgroup": "0::/job/step\n", **files}))
    assert found == CgroupLimits(memory_bytes=1000, memory_used_bytes=450, cores=1.5, cpu_used_seconds=2.5)


HYBRID = {
    "proc/self/cgroup": "9:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/user\n0::/user\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(8 << 30),
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(2 << 30),
    "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "400000",
    "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/cpu,cpuacct/job/cpuacct.usage": "5000000000",
    "sys/fs/cgroup/unified/user/cgroup.procs": "1",
}


def test_limits_of_cgroup_version_1_are_read(tmp_path, subtests):
    """Version 1 is alone, beside a version 2 without controllers, or lacks a controller."""
    unified = {"sys/fs/cgroup/unified/user/memory.max": "1000", "sys/fs/cgroup/unified/user/memory.current": "1"}
    cpu_only = {"proc/self/cgroup": "4:cpu,cpuacct:/job\n0::/user\n"}
    for name, files, memory_bytes, used_bytes in (
        ("version 1", HYBRID | {"proc/self/cgroup": "9:memory:/job\n4:cpu,cpuacct:/job\n"}, 8 << 30, 2 << 30),
        ("both", HYBRID, 8 << 30, 2 << 30),
        ("memory in version 2", HYBRID | cpu_only | unified, 1000, 1),
    ):
        with subtests.test(name):
            limits = CgroupLimits(memory_bytes=memory_bytes, memory_used_bytes=used_bytes, cores=4, cpu_used_seconds=5)
            assert read_limits(write(tmp_path / name, files)) == limits


def test_a_cpu_quota_reduces_the_usable_cores_and_one_of_four_is_left_free():
    free = processor.usable_cores(CgroupLimits())
    assert processor.usable_cores(CgroupLimits(cores=0.5)) == 1
    assert processor.usable_cores(CgroupLimits(cores=1000)) == free
    assert [processor.training_threads(cores) for cores in (1, 2, 3, 4, 5, 16)] == [1, 2, 3, 3, 4, 15]


def threads_of(root: Path, *siblings: str) -> Path:
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return write(root, {folder.format(index): f"{text}\n" for index, text in enumerate(siblings)})


def test_two_threads_of_a_core_count_as_one(monkeypatch, tmp_path):
    """Slurm gives four of eight cores with two threads each, and later one thread of each core."""
    root = threads_of(tmp_path, *(f"{index % 8},{index % 8 + 8}" for index in range(16)))
    allowed = {0, 1, 2, 3, 8, 9, 10, 11}
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda pid: allowed, raising=False)
    assert processor.usable_cores(CgroupLimits(), root) == 4
    assert processor.usable_cores(CgroupLimits(cores=2.5), root) == 2
    allowed |= set(range(16))
    assert processor.usable_cores(CgroupLimits(), root) == 8
    allowed -= set(range(8))
    assert processor.usable_cores(CgroupLimits(), root) == 8


@pytest.mark.full
def test_instruction_sets_are_read_from_cpuinfo(tmp_path):
    x86 = write(
        tmp_path / "x86", {"proc/cpuinfo": "model name\t: Some CPU\nflags\t\t: fpu avx2 amx_bf16 avx512_bf16 rtm\n"}
    )
    assert processor.read_cpuinfo(x86) == ("Some CPU", {"avx2", "amx_bf16", "avx512_bf16"})
    arm = write(tmp_path / "arm", {"proc/cpuinfo": "Features\t: fp asimd bf16 i8mm crc32\n"})
    assert processor.read_cpuinfo(arm)[1] == {"asimd", "bf16", "i8mm"}
    assert processor.read_cpuinfo(tmp_path / "none")[1] == frozenset()


def test_the_model_cache_and_prepared_data_follow_the_environment():
    assert cache_folder({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == Path("/a")
    assert cache_folder({"HF_HOME": "/b"}) == Path("/b/hub")
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")
    assert cache_folder({}) == Path.home() / ".cache/huggingface/hub"
    folder = places.prepared_data_folder
    assert folder({"TUI_TRAINER_HOME": "/h", "XDG_CACHE_HOME": "/c"}) == Path("/h/cache")
    assert folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/tui-trainer")
    assert folder({}) == Path.home() / ".cache/tui-trainer"
    assert folder() == Path.cwd() / "home/cache"


def test_a_folder_that_does_not_exist_yet_has_the_free_space_of_its_parent(tmp_path):
    place = places.read_place("runs", tmp_path / "not" / "yet")
    assert place.free_bytes == disk_free_bytes(tmp_path) or abs(place.free_bytes - disk_free_bytes(tmp_path)) < 1 << 28
    assert place.total_bytes > place.free_bytes
    assert place.writable is True
    assert not (tmp_path / "not").exists()


@pytest.mark.full
def test_a_file_system_that_does_not_answer_has_no_figures(monkeypatch, tmp_path):
    released = Event()
    monkeypatch.setattr(places, "_DEADLINE_SECONDS", 0.05)
    monkeypatch.setattr(places, "_room", lambda folder: released.wait())
    place = places.read_place("runs", tmp_path)
    released.set()
    assert (place.free_bytes, place.total_bytes, place.writable) == (None, None, None)


def test_the_cuda_of_torch_is_read_from_its_version_file(monkeypatch, tmp_path):
    package = write(tmp_path / "site", {"torch/__init__.py": "raise SystemExit", "torch/version.py": ""}) / "torch"
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (package / "version.py").write_text("__version__ = '2.11.0+cu126'\ncuda: Optional[str] = '12.6'\n")
    assert libraries.torch_cuda("2.11.0") == (12, 6)
    (package / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n")
    assert libraries.torch_cuda("2.11.0+cpu") is None
    (package / "version.py").unlink()
    assert libraries.torch_cuda("2.11.0+cu128") == (12, 8)
    assert libraries.torch_cuda(None) is None


def test_missing_bytecode_of_torch_is_a_problem_where_python_may_not_write_it(monkeypatch, tmp_path):
    package = write(tmp_path / "site", {"torch/__init__.py": "raise SystemExit"}) / "torch"
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert libraries.bytecode_obstacle() is None
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert libraries.bytecode_obstacle() == "variable"
    write(package, {f"__pycache__/__init__.{sys.implementation.cache_tag}.pyc": ""})
    assert libraries.bytecode_obstacle() is None


MEMINFO = "MemTotal:  1000 kB\nMemAvailable: 600 kB\nSwapTotal:  400 kB\nSwapFree:   100 kB\n"


def test_memory_left_is_the_least_of_machine_and_container(tmp_path, monkeypatch, subtests):
    """The free swap of the machine counts, because the kernel takes it first."""
    free = namedtuple("free", "available total")(600 << 10, 1000 << 10)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    for limit, left, total, where in (
        ("max", 700 << 10, 1000 << 10, "the machine"),
        (300 << 10, 200 << 10, 300 << 10, "the container"),
        (1 << 30, 700 << 10, 1000 << 10, "the machine"),
    ):
        with subtests.test(f"limit {limit}"):
            groups = {
                "sys/fs/cgroup/cgroup.controllers": "memory",
                "sys/fs/cgroup/job/memory.max": str(limit),
                "sys/fs/cgroup/job/memory.current": str(150 << 10),
                "sys/fs/cgroup/job/memory.stat": f"inactive_file {50 << 10}\n",
            }
            files = {"proc/self/cgroup": "0::/job\n", "proc/meminfo": MEMINFO, **groups}
            found = memory_left(write(tmp_path / str(limit), files))
            assert (found.left_bytes, found.total_bytes, found.where) == (left, total, where)
            assert found.swap_used_bytes == 300 << 10 and found.process_bytes > 1 << 20
