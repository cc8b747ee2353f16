"""The vectors of rows that other ranks look up: most in their step, some while the step before is computed.

A step's early vectors are those of rows that the step before does not use, so they are the same before and
after it. They cross in a message of their own, which is sent as soon as the vectors of the step before are
there, and is under way while that step passes its dense layers; then the step itself waits for the rest
alone. Both ends know from the lookups which vectors these are, so the sizes of both messages are known. The
first step of a process, which has none before, sends both at once.

Nothing changes a row between two steps, so evaluations and checkpoints may come in between: a checkpoint
holds nothing of what is under way, and a run that goes on from it sends it again.

Shapes: S served rows of a step, D floats of a row, N rows of a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..exchange.coded_exchange import EXACT, CodedExchange
from ..exchange.row_messages import NotFiniteRowError, RowMessages, RowsUnderWay, WidthLayout
from ..exchange.width_exchange import EarlyVectors, WidthExchange
from ..execution.row_width import PlannedStep, RowWidth
from ..ranks.ranks import Ranks
from .moved_rows import read_states

_FLOAT_BYTES = 4


def exchanges_of(step: PlannedStep) -> list[WidthExchange]:
    """Return what crosses in a step, by width."""
    found = [part.exchange for part in step.parts if part.exchange is not None]
    assert len(found) == len(step.parts), "steps of several ranks say what crosses"
    return found


def early_of(step: PlannedStep) -> list[EarlyVectors]:
    """Return the vectors of a step that may be sent ahead, by width; nothing where none has a message of its
    own."""
    return [each.early for each in exchanges_of(step) if each.early is not None]


@dataclass(frozen=True, slots=True)
class _Early:
    """The early vectors of a step, on their way."""

    step: PlannedStep
    rows: RowsUnderWay
    num_bytes: int
    num_saturated: int


class VectorsUnderWay:
    """The vectors of a step that are being received."""

    def __init__(self, rows: RowsUnderWay, early: RowsUnderWay | None) -> None:
        self._rows = rows
        self._early = early

    def wait(self) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
        """Return the rows of each width, then whole ones that move here; and the early vectors, if any."""
        early = self._early.wait() if self._early is not None else []
        return self._rows.wait(), early


class SentVectors:
    """Sends the vectors of served rows.

    Args:
        widths: with the tiers of the rows that live here.
        ranks: all of them.
        layout: of each width.
        coded: codecs and counts of what crosses.
        may_move: whether rows may change their homes.
    """

    def __init__(
        self,
        widths: Sequence[RowWidth],
        ranks: Ranks,
        layout: Sequence[WidthLayout],
        coded: CodedExchange,
        *,
        may_move: bool,
    ) -> None:
        self._widths = widths
        self._coded = coded
        self._may_move = may_move
        self._messages = RowMessages(ranks, layout)
        # Rows that move are sent behind the vectors of all widths: weights and states, never coded.
        whole = [
            each._replace(embedding_dim=each.embedding_dim + width.executor.fast.state_SW.shape[1])
            for each, width in zip(layout, widths, strict=True)
        ]
        self._whole_messages = RowMessages(ranks, [*layout, *whole]) if may_move else self._messages
        self._moved_bytes = [_FLOAT_BYTES * each.embedding_dim for each in whole]
        self._ahead: _Early | None = None
        """The early vectors of the step to come, where they were sent."""

    @property
    def has_sent_ahead(self) -> bool:
        """Whether vectors of a step to come are under way."""
        return self._ahead is not None

    def send(self, step: PlannedStep, served: Sequence[NDArray[np.float32]]) -> VectorsUnderWay:
        """Send the vectors of a step, and the rows that move in it.

        Args:
            served: (S, D) vectors of each width.

        Raises:
            NotFiniteRowError: a row that is to be coded has an infinity or a NaN.
        """
        exchanges = exchanges_of(step)
        # Scores are those of the weights, whatever crosses in training; it leaves what was sent ahead alone.
        if not exchanges[0].is_training:
            rows = [vectors_SD[each.sent] for vectors_SD, each in zip(served, exchanges, strict=True)]
            sent = [each.sent_rows for each in exchanges]
            received = [each.received_rows for each in exchanges]
            return VectorsUnderWay(self._messages.send(rows, sent, received, EXACT), None)
        early = self._sent_ahead(step)
        if early is not None:
            self._coded.counts.early_bytes += early.num_bytes
        under_way = self._send_late(step, served, exchanges)
        if early is None and (lists := early_of(step)):
            rows = [vectors_SD[each.sent] for vectors_SD, each in zip(served, lists, strict=True)]
            early = self._send_early(step, rows, ahead=0)
        if early is None:
            return VectorsUnderWay(under_way, None)
        self._coded.note_sent("vectors", early.num_bytes, early.num_saturated)
        return VectorsUnderWay(under_way, early.rows)

    def send_ahead(self, step: PlannedStep, rows: Sequence[NDArray[np.float32]]) -> None:
        """Send the early vectors of the step after the present one; every rank does.

        Args:
            rows: (N, D) of each width, in the order of the lists.

        Raises:
            NotFiniteRowError: as in `send`.
        """
        self.drop()
        with self._coded.clocked("vectors"):
            self._ahead = self._send_early(step, rows, ahead=1)

    def drop(self) -> None:
        """Take what was sent ahead for a step that does not come."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.rows.wait()

    def _sent_ahead(self, step: PlannedStep) -> _Early | None:
        """Return the vectors that were sent ahead for this step, None where there are none."""
        if self._ahead is not None and self._ahead.step is not step:
            self.drop()
        ahead, self._ahead = self._ahead, None
        return ahead

    def _send_early(self, step: PlannedStep, rows: Sequence[NDArray[np.float32]], *, ahead: int) -> _Early:
        lists = early_of(step)
        sent = [each.sent_rows for each in lists]
        received = [each.received_rows for each in lists]
        messages = self._messages
        with self._step_named(ahead):
            under_way = messages.send(rows, sent, received, self._coded.vectors())
        return _Early(step, under_way, messages.sent_bytes, messages.num_saturated)

    def _send_late(
        self, step: PlannedStep, served: Sequence[NDArray[np.float32]], exchanges: Sequence[WidthExchange]
    ) -> RowsUnderWay:
        rows = [vectors_SD[each.sent] for vectors_SD, each in zip(served, exchanges, strict=True)]
        sent = [each.sent_rows for each in exchanges]
        received = [each.received_rows for each in exchanges]
        coding = self._coded.vectors()
        if self._may_move:
            coding = coding.with_exact(len(exchanges))
            sent += [each.leaving_rows for each in exchanges]
            received += [each.coming_rows for each in exchanges]
            for width, part, vectors_SD, each in zip(
                self._widths, step.parts, served, exchanges, strict=True
            ):
                states_NW = read_states(width.executor, part, each.leaving)
                rows.append(np.concatenate([vectors_SD[each.leaving], states_NW], axis=1))
        messages = self._whole_messages
        with self._coded.clocked("vectors"), self._step_named(0):
            under_way = messages.send(rows, sent, received, coding)
        moved = sum(size * each.leaving.size for size, each in zip(self._moved_bytes, exchanges, strict=True))
        self._coded.note_sent("moves", moved, 0)
        self._coded.note_sent("vectors", messages.sent_bytes - moved, messages.num_saturated)
        return under_way

    @contextmanager
    def _step_named(self, ahead: int) -> Iterator[None]:
        """Say in which step a row is not finite."""
        try:
            yield
        except NotFiniteRowError as error:
            number = self._coded.step + ahead + 1
            raise NotFiniteRowError(f"the vector of {error} at step {number}") from None
