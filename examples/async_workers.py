"""Coroutines that share a space: fetchers take requests and write pages, a counter takes pages. A
cancelled take loses no request."""

import asyncio
from dataclasses import dataclass

from tupelo import aio


@dataclass
class Page:
    address: str
    text: str | None = None
    words: int | None = None


@dataclass
class Request:
    address: str | None = None


async def fetch(space: aio.Space) -> None:
    while True:
        async with space.transaction(lease=5) as txn:
            request = await space.take(Request, wait=1, txn=txn)
            if request is None:
                return
            await asyncio.sleep(0.01)  # stands for a download
            page = Page(request.address, text="lorem ipsum " * len(request.address))
            await space.write(page, txn=txn)


async def count(space: aio.Space, pages: int) -> None:
    for _ in range(pages):
        page = await space.take(Page)  # the page that comes first
        page.words = len(page.text.split())
        await space.write(("words", page.address, page.words))


async def main() -> None:
    addresses = ["/", "/about", "/news", "/news/today"]
    async with aio.Space("pages") as space, asyncio.TaskGroup() as group:
        fetchers = [group.create_task(fetch(space)) for _ in range(3)]
        counter = group.create_task(count(space, len(addresses)))

        impatient = asyncio.create_task(space.take(Request))
        await asyncio.sleep(0)  # Let the tasks start; now all of them wait.
        await space.write_all([Request(address) for address in addresses])
        impatient.cancel()  # It may have got a request, which goes back to the space.

        await counter
        for _, address, words in sorted(await space.read_all(("words", str, int))):
            print(f"{address}: {words} words")
        for fetcher in fetchers:
            fetcher.cancel()
        print(f"{await space.count(Request)} requests left")


if __name__ == "__main__":
    asyncio.run(main())
