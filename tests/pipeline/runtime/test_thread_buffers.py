"""A thread's memory is used again, grows, and is no other thread's."""

from __future__ import annotations

import mmap
from threading import Thread

import numpy as np
import pytest

from hotset.pipeline.runtime.thread_buffers import (
    drop_thread_buffers,
    placed_like_file,
    release_pages,
    thread_buffer,
)


def test_memory_of_one_name_is_used_again_and_grows() -> None:
    drop_thread_buffers()
    first = thread_buffer("ids", (4, 3), np.int32)
    assert first.shape == (4, 3) and first.dtype == np.int32 and first.flags.c_contiguous
    again = thread_buffer("ids", (2, 3), np.float32)
    assert again.shape == (2, 3) and np.shares_memory(first, again)
    larger = thread_buffer("ids", (40, 3), np.int32)
    assert larger.shape == (40, 3) and not np.shares_memory(first, larger)
    assert not np.shares_memory(larger, thread_buffer("keys", (40,), np.int64))
    assert thread_buffer("none", (0, 3), np.int32).shape == (0, 3)
    drop_thread_buffers()
    assert not np.shares_memory(larger, thread_buffer("ids", (40, 3), np.int32))


def test_threads_share_nothing() -> None:
    mine, others = thread_buffer("ids", (8,), np.int32), []
    thread = Thread(target=lambda: others.append(thread_buffer("ids", (8,), np.int32)))
    thread.start()
    thread.join()
    assert not np.shares_memory(mine, others[0])


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 4096, 5000, 1 << 20])
def test_forgotten_memory_can_be_written_again_and_its_neighbours_are_kept(num_bytes: int) -> None:
    memory = np.full(num_bytes + 20_000, 7, np.uint8)
    release_pages(memory[10_000 : 10_000 + num_bytes])
    assert (memory[:10_000] == 7).all() and (memory[10_000 + num_bytes :] == 7).all()
    memory[10_000 : 10_000 + num_bytes] = 8
    assert (memory[10_000 : 10_000 + num_bytes] == 8).all()


@pytest.mark.parametrize("position", [0, 1, 4095, 4096, 10**12 + 7])
@pytest.mark.parametrize("skipped", [0, 1, 17])
def test_memory_begins_as_far_into_a_page_as_a_file(position: int, skipped: int) -> None:
    memory = np.zeros(skipped + mmap.PAGESIZE + 100, np.uint8)[skipped:]
    placed = placed_like_file(memory, position)
    assert (placed.ctypes.data - position) % mmap.PAGESIZE == 0
    assert placed.shape[0] > 100 and np.shares_memory(placed[-1:], memory[-1:])
