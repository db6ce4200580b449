"""Cards and what their maker says they can do. An unknown card is None: measure one step rather than guess.

Rates are dense (the data sheets' sparse ones halved), and those of tensor cores accumulate in fp32, as training does.
On GeForce cards that is half of the advertised rate.
"""

from dataclasses import dataclass, fields

from tui_trainer.units import GIB

# The driver keeps some memory, and ECC another sixteenth.
_LEAST_SHARE, _MOST_SHARE = 0.90, 1.02
MAKERS_WORDS = ("nvidia", "geforce", "tesla", "quadro")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """10^12 operations a second by precision; None where the card has no such units or no figure is known."""

    fp32: float | None = None
    tf32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    fp8: float | None = None
    int8: float | None = None

    def known(self) -> dict[str, float]:
        """The rates that there are, by precision."""
        return {rate.name: value for rate in fields(self) if (value := getattr(self, rate.name)) is not None}


@dataclass(frozen=True, slots=True)
class Card:
    """One model. `names` are the driver's, as `plain_name` has them."""

    title: str
    names: tuple[str, ...]
    capability: tuple[int, int]
    memory_gib: int
    gigabytes_per_second: float
    """Peak of the memory; 10^9 bytes."""
    teraflops: Rates
    source: str
    tensor_cores: bool = True


def find_card(name: str | None, memory_bytes: int | None) -> Card | None:
    """The row of a card by the driver's name; memory tells apart models that share one. None when it is unknown."""
    if name is None:
        return None
    rows = [card for card in CARDS if plain_name(name) in card.names]
    if memory_bytes is not None:
        rows = [card for card in rows if _LEAST_SHARE <= memory_bytes / (card.memory_gib * GIB) <= _MOST_SHARE]
    return rows[0] if len(rows) == 1 else None


def plain_name(name: str) -> str:
    """`NVIDIA GeForce RTX 4090` as `rtx 4090`: lower case, blanks for hyphens, without the maker's words."""
    words = name.lower().replace("-", " ").split()
    return " ".join(word for word in words if word not in MAKERS_WORDS)


def _ampere(fp32: float | None, tf32: float, half: float, fp8: float | None = None, int8: float | None = None) -> Rates:
    """Of Ampere and newer: bf16 is as fast as fp16."""
    return Rates(fp32=fp32, tf32=tf32, fp16=half, bf16=half, fp8=fp8, int8=int8)


_P100, _H100, _HGX_B200 = "NVIDIA P100 data sheet", "NVIDIA H100 data sheet", "NVIDIA HGX B200 data sheet"
_TURING = "NVIDIA Turing architecture paper"
_GA102 = "NVIDIA Ampere GA102 architecture paper"
_ADA = "NVIDIA Ada architecture paper"
_BLACKWELL = "NVIDIA RTX Blackwell architecture paper"
# Cores x 2 x boost clock, and the tensor cores' share of it that the paper gives for the same chip family.
_GA102_RATIO = "NVIDIA specifications (cores, boost clock), ratios of the GA102 paper"
_ADA_RATIO = "NVIDIA specifications (cores, boost clock), ratios of the Ada paper"
_A100_RATES = _ampere(19.5, 156, 312, int8=624)
_HOPPER_RATES = _ampere(67, 494.5, 989, fp8=1979, int8=1979)

CARDS = (
    Card("K80", ("k80",), (3, 7), 12, 240, Rates(fp32=4.37), "NVIDIA K80 data sheet, one of its two GPUs", False),
    Card("GTX 1080 Ti", ("gtx 1080 ti",), (6, 1), 11, 484, Rates(fp32=11.3), "NVIDIA specifications", False),
    Card("P100 PCIe", ("p100 pcie 16gb",), (6, 0), 16, 732, Rates(fp32=9.3, fp16=18.7), _P100, False),
    Card("P100", ("p100 sxm2 16gb",), (6, 0), 16, 732, Rates(fp32=10.6, fp16=21.2), _P100, False),
    Card("V100", ("v100 sxm2 16gb",), (7, 0), 16, 900, Rates(fp32=15.7, fp16=125), "NVIDIA V100 data sheet"),
    Card("V100", ("v100 sxm2 32gb",), (7, 0), 32, 900, Rates(fp32=15.7, fp16=125), "NVIDIA V100 data sheet"),
    Card("V100 PCIe", ("v100 pcie 16gb",), (7, 0), 16, 900, Rates(fp32=14, fp16=112), "NVIDIA V100 data sheet"),
    Card("V100 PCIe", ("v100 pcie 32gb",), (7, 0), 32, 900, Rates(fp32=14, fp16=112), "NVIDIA V100 data sheet"),
    Card("T4", ("t4",), (7, 5), 16, 320, Rates(fp32=8.1, fp16=65, int8=130), "NVIDIA T4 data sheet"),
    Card("GTX 1660", ("gtx 1660",), (7, 5), 6, 192, Rates(fp32=5.0), "NVIDIA specifications", False),
    Card("RTX 2080 Ti", ("rtx 2080 ti",), (7, 5), 11, 616, Rates(fp32=13.4, fp16=53.8, int8=215), _TURING),
    Card("RTX 3060", ("rtx 3060",), (8, 6), 12, 360, _ampere(12.7, 12.7, 25.5), _GA102_RATIO),
    Card("RTX 3080", ("rtx 3080",), (8, 6), 10, 760, _ampere(29.8, 29.8, 59.5, int8=238), _GA102),
    Card("RTX 3090", ("rtx 3090",), (8, 6), 24, 936, _ampere(35.6, 35.6, 71, int8=284), _GA102),
    Card("A10", ("a10",), (8, 6), 24, 600, _ampere(31.2, 62.5, 125, int8=250), "NVIDIA A10 data sheet"),
    Card("A40", ("a40",), (8, 6), 48, 696, _ampere(37.4, 74.8, 149.7, int8=299.3), "NVIDIA A40 data sheet"),
    Card("RTX A5000", ("rtx a5000",), (8, 6), 24, 768, _ampere(27.8, 55.6, 111.1), "NVIDIA RTX A5000 data sheet"),
    Card("RTX A6000", ("rtx a6000",), (8, 6), 48, 768, _ampere(38.7, 77.4, 154.8), _GA102),
    Card("A100 40 GB", ("a100 sxm4 40gb", "a100 pcie 40gb"), (8, 0), 40, 1555, _A100_RATES, "NVIDIA A100 data sheet"),
    Card("A100 80 GB", ("a100 sxm4 80gb",), (8, 0), 80, 2039, _A100_RATES, "NVIDIA A100 data sheet"),
    Card("A100 80 GB PCIe", ("a100 80gb pcie",), (8, 0), 80, 1935, _A100_RATES, "NVIDIA A100 data sheet"),
    Card("L4", ("l4",), (8, 9), 24, 300, _ampere(30.3, 60, 121, fp8=242.5, int8=242.5), "NVIDIA L4 data sheet"),
    Card("L40S", ("l40s",), (8, 9), 48, 864, _ampere(91.6, 183, 362, fp8=733, int8=733), "NVIDIA L40S data sheet"),
    Card("RTX 4070", ("rtx 4070",), (8, 9), 12, 504, _ampere(29.1, 29.1, 58.3, fp8=116.6), _ADA_RATIO),
    Card("RTX 4080 SUPER", ("rtx 4080 super",), (8, 9), 16, 736, _ampere(52.2, 52.2, 104.4, fp8=208.9), _ADA_RATIO),
    Card("RTX 4090", ("rtx 4090",), (8, 9), 24, 1008, _ampere(82.6, 82.6, 165.2, fp8=330.3, int8=660.6), _ADA),
    Card("RTX 5090", ("rtx 5090",), (12, 0), 32, 1792, _ampere(104.8, 104.8, 209.5, fp8=419, int8=838), _BLACKWELL),
    Card("H100 PCIe", ("h100 pcie",), (9, 0), 80, 2000, _ampere(51, 378, 756, fp8=1513, int8=1513), _H100),
    Card("H100 SXM", ("h100 80gb hbm3",), (9, 0), 80, 3350, _HOPPER_RATES, _H100),
    Card("H200 SXM", ("h200",), (9, 0), 141, 4800, _HOPPER_RATES, "NVIDIA H200 data sheet"),
    Card("B200", ("b200",), (10, 0), 180, 8000, _ampere(None, 1125, 2250, fp8=4500, int8=4500), _HGX_B200),
)
