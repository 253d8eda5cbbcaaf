"""Looking: what lies at the hosts of a world, in memory and on disk, for the judge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tupelo.errors import TupeloError
from tupelo.federation.identity.sealing import unseal
from tupelo.federation.names import companion_name
from tupelo.federation.replication.copies import PREFIX
from tupelo.federation.replication.streams import host_of
from tupelo.lab.melon.history import FoundMessage, Message, Plain
from tupelo.lab.melon.world import SECRET, MelonHost, MelonWorld
from tupelo.models.melon.message_store import MessageStore
from tupelo.models.melon.sealed import Sealed, read_item
from tupelo.values.codec import decode_entry
from tupelo.values.entry import Entry

NAME = "melon"
WHERE = {
    NAME: "stored",
    companion_name("written", NAME): "written",
    PREFIX + companion_name("written", NAME): "copies",
    PREFIX + companion_name("sealed", NAME): "copies",
}
_SECRET = re.compile(SECRET.encode() + rb"(\d+)")


def watch(world: MelonWorld) -> None:
    """From now on everything is looked at that goes over links, or ends."""
    world.look = look

    def hears(content: bytes) -> None:
        world.history.overheard.update(secrets_in(content))

    world.network.hears = hears


def look(member: MelonHost) -> None:
    """Is there, at a host, what must not be?"""
    history = member.world.history
    history.strays.update(one for one in found_at(member) if one.where not in ("stored", "written"))
    for name, hosted in member.core.spaces.items():
        entries = [*hosted.port.entries()]
        for number in secrets_in(repr([entry.fields for entry in entries]).encode()):
            history.plain.add(Plain(member.name, number, f"the space {name}"))
    for letter in post_of(member).directed.letters:
        for number in secrets_in(repr(letter.entry.fields).encode()):
            history.plain.add(Plain(member.name, number, "what was opened"))
    if member.folder is not None:
        for path in sorted(member.folder.rglob("*")):
            if path.is_file():
                for number in secrets_in(path.read_bytes()):
                    history.plain.add(Plain(member.name, number, f"the file {path.name}"))


def secrets_in(content: bytes) -> set[int]:
    return {int(number) for number in _SECRET.findall(content)} if b"hush" in content else set()


def post_of(member: MelonHost) -> MessageStore:
    post = member.core.extensions[f"melon {NAME}"]
    assert isinstance(post, MessageStore)
    return post


def found_at(member: MelonHost) -> Iterator[FoundMessage]:
    """The messages that are in the spaces of a host."""
    for name, hosted in member.core.spaces.items():
        for entry in hosted.port.entries_and_taken():
            if (message := message_of(entry)) is not None:
                yield FoundMessage(member.name, WHERE.get(name, name), message)


def message_of(entry: Entry) -> Message | None:
    types = tuple(map(type, entry.fields))
    return tuple(entry.fields) if types == (str, str, int, str) else None


def sealed_at(member: MelonHost) -> Iterator[FoundMessage]:
    """The directed messages that a host carries, opened with the keys of those they are for."""
    for source, stream in post_of(member).directed.feed.exchange.streams.items():
        for entry in stream.items.values():
            sealed = read_item(entry)
            if isinstance(sealed, Sealed):
                message = _opened(member.world, host_of(source), sealed)
                if message is not None:
                    yield FoundMessage(member.name, "sealed", message)


def _opened(world: MelonWorld, source: str, sealed: Sealed) -> Message | None:
    addressee = next(one for one in world.members if one.identity.key == sealed.to)
    context = sealed.context(NAME, source)
    try:
        _, plain = unseal(addressee.identity, sealed.seal, context)
    except TupeloError:
        return None
    return tuple(decode_entry(plain)[1])


def evicted_at(member: MelonHost) -> Iterator[Message]:
    """What the logs of a host say of what has given way."""
    for name in (NAME, companion_name("written", NAME), companion_name("sealed", NAME)):
        for change in member.core.spaces[name].space.changes():
            if change.kind == "evicted":
                message = (
                    _opened(member.world, member.core.id, change.entry)
                    if isinstance(change.entry, Sealed)
                    else change.entry
                )
                if isinstance(message, tuple):
                    yield message


def look_at_last(world: MelonWorld) -> None:
    """Everyone is back: what is there?"""
    history, ending = world.history, world.history.ending
    for member in world.members:
        look(member)
        name = member.name
        ending.near[name] = {peer.name for peer in member.core.peers.values()}
        ending.melons |= dict.fromkeys(member.melons, name)
        ending.found += [*found_at(member), *sealed_at(member)]
        if member.durable:
            history.evicted.update(evicted_at(member))
        ending.remains |= {
            f"{what} at {name}": repr(things) for what, things in remains(member).items() if things
        }


def remains(member: MelonHost) -> dict[str, Any]:
    """What is left of what was under way."""
    core, post = member.core, post_of(member)
    found: dict[str, Any] = {
        **core.under_way(),
        "those who wait": list(post.broadcast.waiting),
    }
    for name, hosted in core.spaces.items():
        under_way = hosted.port.under_way()
        for what in ("transactions", "deliveries", "waiters"):
            found[f"{what} in {name}"] = under_way[what]
    return found
