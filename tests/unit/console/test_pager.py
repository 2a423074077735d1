"""A listing in pages reads what is looked at and no more, and an error is never taken for the end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from metad_client.errors import ConnectionLostError
from metad_console.pager import KEPT_BYTES_MAX, PAGE_BYTES_MAX, Pager


class Source:
    """Numbers, and how many of them were read."""

    def __init__(self, count: int, breaks_at: int = -1) -> None:
        self.read, self.is_closed = 0, False
        self._count, self._breaks_at = count, breaks_at

    async def records(self) -> AsyncIterator[int]:
        try:
            for number in range(self._count):
                if number == self._breaks_at:
                    raise ConnectionLostError("gone")
                self.read += 1
                yield number
        finally:
            self.is_closed = True


async def test_of_ten_million_records_the_pages_that_are_looked_at_are_read() -> None:
    source = Source(10_000_000)
    pager = Pager(source.records(), rows_max=200)
    assert (pager.number, pager.rows, pager.has_more, pager.has_back) == (0, [], False, False)
    for number in range(1, 4):
        await pager.forward()
        assert pager.number == number
        assert pager.rows == [*range(200 * (number - 1), 200 * number)]
        assert source.read == 200 * number + 1
    assert pager.has_more
    await pager.close()
    assert source.is_closed


@pytest.mark.parametrize(("count", "pages"), [(0, [0]), (1, [1]), (5, [5]), (6, [5, 1]), (10, [5, 5])])
async def test_the_last_page_says_so(count: int, pages: list[int]) -> None:
    pager = Pager(Source(count).records(), rows_max=5)
    sizes = []
    while not sizes or pager.has_more:
        await pager.forward()
        sizes.append(len(pager.rows))
    assert sizes == pages
    await pager.forward()
    assert (pager.number, len(pager.rows)) == (len(pages), pages[-1])


async def test_pages_are_kept_for_the_way_back_and_not_for_ever() -> None:
    source = Source(100)
    pager = Pager(source.records(), rows_max=10, kept_max=3)
    for _ in range(5):
        await pager.forward()
    read = source.read
    seen = []
    while pager.has_back:
        pager.back()
        seen.append((pager.number, pager.rows[0]))
    assert seen == [(4, 30), (3, 20)], "the two before are in memory, the others are not"
    pager.back()
    assert pager.number == 3
    for number in (4, 5, 6):
        await pager.forward()
        assert (pager.number, pager.rows[0]) == (number, 10 * (number - 1))
    assert source.read == read + 10


async def test_large_records_make_shorter_pages_and_a_shorter_way_back() -> None:
    large = "x" * (PAGE_BYTES_MAX // 2)

    async def records() -> AsyncIterator[str]:
        for _ in range(60):
            yield large

    pager = Pager(records(), rows_max=200)
    seen = 0
    while not seen or pager.has_more:
        await pager.forward()
        assert len(pager.rows) <= 3
        seen += len(pager.rows)
    assert seen == 60
    pages, back = pager.number, 0
    while pager.has_back:
        pager.back()
        back += 1
    assert pager.number == pages - back
    assert back + 1 <= KEPT_BYTES_MAX // PAGE_BYTES_MAX


async def test_an_error_is_told_again_and_is_no_end() -> None:
    pager = Pager(Source(100, breaks_at=15).records(), rows_max=10)
    await pager.forward()
    for _ in range(2):
        with pytest.raises(ConnectionLostError):
            await pager.forward()
    assert pager.rows == [*range(10)]
    assert pager.has_more
