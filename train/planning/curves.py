"""The curves of a measured machine, as its file holds them. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from ...pipeline.folders.json_record import JsonRecord, RecordError
from ...stats.step_model.rate_curves import ProductCurve, RowCurve
from ...stats.step_model.step_work import CodecSeconds, WorkConstants


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves(JsonRecord):
    """The fitted curves that features of a step are made of; see `stats.step_model.rate_curves`."""

    product_seconds: float
    product_flops: float
    product_half_batch: float
    product_number_seconds: float
    working_bytes: tuple[float, ...]
    row_seconds: tuple[float, ...]
    row_byte_seconds: tuple[float, ...]
    update_working_bytes: tuple[float, ...]
    update_seconds: tuple[float, ...]
    update_byte_seconds: tuple[float, ...]
    copy_bytes_per_second: float
    message_seconds: float
    message_bytes_per_second: float
    gather_seconds: float
    gather_bytes_per_second: float
    codec_seconds: dict[str, float]
    """By codec, of a row."""
    codec_byte_seconds: dict[str, float]
    """By codec, of each of its bytes in float32."""

    @classmethod
    def of(cls, constants: WorkConstants) -> Curves:
        """Take the curves apart."""
        rows, updates = constants.rows, constants.updates
        return cls(
            product_seconds=constants.products.fixed_seconds,
            product_flops=constants.products.flops,
            product_half_batch=constants.products.half_batch,
            product_number_seconds=constants.products.number_seconds,
            working_bytes=rows.working_bytes,
            row_seconds=rows.seconds_per_row,
            row_byte_seconds=rows.seconds_per_byte,
            update_working_bytes=updates.working_bytes,
            update_seconds=updates.seconds_per_row,
            update_byte_seconds=updates.seconds_per_byte,
            copy_bytes_per_second=constants.copy_bytes_per_second,
            message_seconds=constants.message_seconds,
            message_bytes_per_second=constants.message_bytes_per_second,
            gather_seconds=constants.gather_seconds,
            gather_bytes_per_second=constants.gather_bytes_per_second,
            codec_seconds={name: each.per_row for name, each in constants.codecs.items()},
            codec_byte_seconds={name: each.per_byte for name, each in constants.codecs.items()},
        )

    def refuse_nonsense(self, where: str) -> None:
        # No time, size or rate is negative.
        for name, value in asdict(self).items():
            if any(each < 0 for each in _numbers(value)):
                raise RecordError(f"{where}{name} is below 0")
        # Predictions divide by these.
        for name in (
            "product_flops",
            "copy_bytes_per_second",
            "message_bytes_per_second",
            "gather_bytes_per_second",
        ):
            if getattr(self, name) <= 0:
                raise RecordError(f"{where}{name} is {getattr(self, name)}, want more than 0")
        if self.codec_seconds.keys() != self.codec_byte_seconds.keys():
            raise RecordError(f"{where}codec_byte_seconds has other codecs than codec_seconds")
        # Curves are interpolated over the logarithms of their working sets, one time for each.
        for sizes, values in (
            ("working_bytes", ("row_seconds", "row_byte_seconds")),
            ("update_working_bytes", ("update_seconds", "update_byte_seconds")),
        ):
            wanted = len(getattr(self, sizes))
            if not wanted or any(len(getattr(self, name)) != wanted for name in values):
                raise RecordError(f"{where}{sizes} has {wanted} values, and its curves have others")
            if min(getattr(self, sizes)) <= 0:
                raise RecordError(f"{where}{sizes} is not above 0")
            # Times between two sizes are interpolated, which wants them in order.
            if any(larger <= smaller for smaller, larger in pairwise(getattr(self, sizes))):
                raise RecordError(f"{where}{sizes} is not ascending")

    @property
    def constants(self) -> WorkConstants:
        """The curves put together."""
        return WorkConstants(
            products=ProductCurve(
                self.product_seconds,
                self.product_flops,
                self.product_half_batch,
                self.product_number_seconds,
            ),
            rows=RowCurve(self.working_bytes, self.row_seconds, self.row_byte_seconds),
            updates=RowCurve(self.update_working_bytes, self.update_seconds, self.update_byte_seconds),
            copy_bytes_per_second=self.copy_bytes_per_second,
            message_seconds=self.message_seconds,
            message_bytes_per_second=self.message_bytes_per_second,
            gather_seconds=self.gather_seconds,
            gather_bytes_per_second=self.gather_bytes_per_second,
            codecs={
                name: CodecSeconds(seconds, self.codec_byte_seconds[name])
                for name, seconds in self.codec_seconds.items()
            },
        )


def _numbers(value: Any) -> list[float]:
    """Return the numbers of a field: one, a list of them, or one for each name."""
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]
