"""The catalogue of GPUs, and what a compute capability offers."""

from __future__ import annotations

from tui_trainer.hardware.gpu_models import (
    CARDS,
    abilities,
    build_problem,
    find_card,
    fitting_wheel,
    plain_name,
    too_old_reason,
)

MIB = 1 << 20


UNKNOWN = [
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376),
    ("NVIDIA GeForce RTX 3080 Ti", 12288),
    ("NVIDIA GeForce RTX 3080", 12288),
    ("NVIDIA GeForce GTX 1660 SUPER", 6144),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864),
    ("NVIDIA L40", 46068),
    ("Something New", 1),
    (None, 143771),
]


def test_a_card_is_never_taken_for_a_similar_one(subtests):
    """`tests/planning/test_profiles_on_machines.py` looks up every card of the catalogue."""
    for name, memory_mib in UNKNOWN:
        with subtests.test(str(name)):
            assert find_card(name, memory_mib * MIB) is None
    assert find_card("NVIDIA H200", None).title == "H200 SXM", "a driver may not report the memory"
    assert find_card("GeForce RTX 2080 Ti", 11264 * MIB).title == "RTX 2080 Ti", "or the name of its maker"


def test_every_entry_is_complete_and_unique():
    assert len(CARDS) >= 30
    keys = [(name, card.memory_gib) for card in CARDS for name in card.names]
    assert len(keys) == len(set(keys))
    for card in CARDS:
        assert card.source.startswith("NVIDIA"), card
        assert all(name == plain_name(name) for name in card.names), card
        assert find_card(card.names[0], card.memory_gib << 30) is card


def test_published_rates_agree_with_the_compute_capability():
    for card in CARDS:
        can, rates = abilities(card.capability, card), card.teraflops
        assert len(rates.known()) >= 1
        assert (rates.bf16 is not None) == can.bf16, card
        assert (rates.tf32 is not None) == can.tf32, card
        assert rates.fp8 is None or can.fp8, card
        if rates.bf16 is not None:
            assert rates.bf16 == rates.fp16, card
            assert 1.9 <= rates.bf16 / rates.tf32 <= 2.1, card


def test_each_generation_has_its_abilities():
    assert abilities(None) is None
    hopper, ada, ampere, turing, pascal = (abilities(c) for c in ((9, 0), (8, 9), (8, 0), (7, 5), (6, 1)))
    assert hopper.fp8 and ada.fp8 and not ampere.fp8
    assert ampere.bf16 and ampere.tf32 and ampere.flash_attention
    assert turing.fp16_tensor_cores and not turing.bf16 and not turing.tf32 and not turing.flash_attention
    assert not pascal.fp16_tensor_cores
    gtx_1660 = find_card("NVIDIA GeForce GTX 1660", 6 << 30)
    assert not abilities((7, 5), gtx_1660).fp16_tensor_cores


def test_a_build_of_torch_that_does_not_serve_the_card_is_reported():
    assert "CUDA 13" in build_problem((7, 0), (13, 0))
    assert build_problem((7, 0), (12, 6)) == ""
    assert build_problem((7, 5), (13, 2)) == ""
    assert "12.8" in build_problem((12, 0), (12, 6))
    assert build_problem((12, 0), (12, 8)) == ""
    assert "no kernels below compute capability 7.0" in build_problem((6, 1), (12, 8))
    assert build_problem((6, 1), (12, 6)) == build_problem((7, 0), (12, 8)) == ""
    assert build_problem((7, 0), (12, 8), "2.10.1") == build_problem((7, 0), (12, 6), "2.11.0") == ""
    assert "no kernels below compute capability 7.5" in build_problem((7, 0), (12, 9), "2.11.0+cu129")
    assert too_old_reason((3, 7))
    assert too_old_reason((5, 0)) == ""


def test_the_suggested_build_of_torch_fits_driver_and_card():
    for driver, capability, wheel in (
        ((12, 4), (9, 0), "cu126"),
        ((13, 0), (9, 0), "cu130"),
        ((13, 2), (7, 0), "cu126"),
        ((12, 8), (12, 0), "cu128"),
        ((11, 8), (8, 0), None),
        ((12, 4), (3, 7), None),
        ((12, 4), None, "cu126"),
    ):
        assert fitting_wheel(driver, capability) == wheel, (driver, capability)
