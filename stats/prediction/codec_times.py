"""The time of a message in a codec, and the codec that is worth its work.

A message of ``raw`` bytes takes

    bytes / bandwidth + encode + decode

seconds in a codec that makes ``bytes`` of them. The delay of the link is the same for all. A codec of ratio
CR that encodes Tc and decodes Td bytes per second pays below the bandwidth

    (1 - 1 / CR) / (1 / Tc + 1 / Td)

Source:
    The cost model of Feng et al., SC'24, arXiv 2407.04272. By its own figures, Huffman codes with a ratio of
    10 at 60 and 40 GB/s do not pay above 21.6 GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LEAST_GAIN = 0.05
"""Share of a codec's time that rows take longer as they are, before they are sent in it."""


@dataclass(frozen=True, slots=True)
class CodecCost:
    """The cost of one message in a codec."""

    num_bytes: float
    """Bytes sent."""
    seconds: float
    """Seconds to encode and to decode them."""

    def seconds_at(self, bytes_per_second: float) -> float:
        """Return the seconds of the message over a link, without its delay."""
        return self.num_bytes / bytes_per_second + self.seconds


def worthwhile_codec(costs: Mapping[str, CodecCost], bytes_per_second: float, exact: str = "none") -> str:
    """Return the quickest codec, and ``exact`` unless that takes longer by `LEAST_GAIN` of the other's time.

    So what is returned is within `LEAST_GAIN` of the quickest.

    Args:
        costs: of each codec, ``exact`` among them.
        bytes_per_second: of the link, each way.
        exact: the codec that changes nothing.
    """
    quickest = min(costs, key=lambda name: costs[name].seconds_at(bytes_per_second))
    limit = (1 + LEAST_GAIN) * costs[quickest].seconds_at(bytes_per_second)
    return quickest if costs[exact].seconds_at(bytes_per_second) >= limit else exact


def break_even_bandwidth(ratio: float, encoded_per_second: float, decoded_per_second: float) -> float:
    """Return the bandwidth above which a codec costs more time than it saves, in the unit of the speeds."""
    return (1 - 1 / ratio) / (1 / encoded_per_second + 1 / decoded_per_second)
