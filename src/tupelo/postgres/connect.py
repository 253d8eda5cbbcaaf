"""`tupelo.connect("postgresql://…/db?space=jobs")`."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from tupelo.errors import BadArgument
from tupelo.postgres.driver import where_of
from tupelo.postgres.options import SpaceOptions, check_name, check_text, options_of
from tupelo.postgres.space import PostgresSpace
from tupelo.space.capacity import Capacity
from tupelo.space.clock import Clock
from tupelo.space.order import Order


def split_url(url: str) -> tuple[str, str | None]:
    """The address of the database for the driver, and the name of the space in the query."""
    base, _, query = url.partition("?")
    names = [value for key, value in parse_qsl(query, keep_blank_values=True) if key == "space"]
    # The rest stays as it is: to the driver a plus is no space.
    rest = "&".join(part for part in query.split("&") if part.partition("=")[0] != "space")
    if len(names) > 1:
        raise BadArgument("url", "one that names one space", names)
    return f"{base}?{rest}" if rest else base, names[0] if names else None


def address_of(url: str, name: str) -> tuple[str, str]:
    """The URL of a space in a database that is called `name`, unless the URL names one; and the
    address without user and password, for messages."""
    conninfo, given = split_url(url)
    where = where_of(conninfo)
    mark = "&" if "?" in conninfo else "?"
    return f"{conninfo}{mark}{urlencode({'space': check_name(given or name)})}", where


async def open_space(
    url: str,
    *,
    is_async: bool,
    create: bool = True,
    label: str = "",
    agent: str = "",
    reconnect: float = 30.0,
    order: Order | None = None,
    capacity: Capacity | None = None,
    log_keep: int | str | None = None,
    clock: Clock | None = None,
) -> PostgresSpace:
    """Open the space that a URL names. `order`, `capacity` and `log_keep` are those of a new
    space, or None; `agent` is the id of the program, or new. With a `clock`, which all its
    programs must share, leases are its and not the server's: for tests."""
    conninfo, name = split_url(url)
    if name is None:
        expected = "one that names a space: postgresql://host/database?space=jobs"
        raise BadArgument("url", expected, url)
    check_name(name)
    check_text("name", "a label of this program", label)
    options: SpaceOptions | None = None
    if order is not None or capacity is not None or log_keep is not None:
        options = options_of(order, capacity, log_keep)
    return await PostgresSpace.opened(
        conninfo, is_async, name, options, create, clock, label, reconnect, agent
    )
