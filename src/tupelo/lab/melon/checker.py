"""The checker of MELON: its invariants, decided from a history alone.

Some losses are excused: of messages that were in the memory of a host that crashed, or on their way
to a process that was killed, or that were collected and reported as collected.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tupelo.lab.melon.workload import (
    ADDS,
    READS,
    TAKES,
    FoundMessage,
    MelonAct,
    MelonHistory,
    MelonSimulation,
    Message,
)
from tupelo.lab.melon.workload import message_name as name_of
from tupelo.lab.simulation import Fault

MANY = 1_000
"""No `take_all` has returned more messages."""
UNDER_WAY_TICKS = 100
"""The request of an operation that was cancelled may be pending for about so long, and hold the
messages that it finds until it is withdrawn."""


def check(world: MelonSimulation) -> list[Fault]:
    return check_history(world.history)


def check_history(history: MelonHistory) -> list[Fault]:
    case = Case(history)
    return [
        *check_failures(case),
        *check_answers(case),
        *check_twice(case),
        *check_order(case),
        *check_places(case),
        *check_secrets(case),
        *check_collected(case),
        *check_losses(case),
        *check_mail(case),
        *check_readers(case),
        *check_copies(case),
        *check_carriers(case),
        *check_waiting(case),
    ]


class Case:
    """A history, with indexes for the checks."""

    def __init__(self, history: MelonHistory) -> None:
        self.history = history
        self.added = {
            message: act for act in history.acts if act.verb in ADDS for message in act.messages
        }
        self.numbers = {message[2]: message for message in self.added}
        self.mail = {message for message, act in self.added.items() if act.to is not None}
        self.takes = [act for act in history.acts if act.verb in TAKES]
        self.reads = [act for act in history.acts if act.verb in READS]
        self.takers: dict[Message, list[MelonAct]] = defaultdict(list)
        for act in self.takes:
            for message in act.messages:
                self.takers[message].append(act)
        self.read_by: dict[str, Counter[Message]] = defaultdict(Counter)
        for act in self.reads:
            self.read_by[act.melon].update(act.messages)
        self.told = {one.message for one in history.told if not isinstance(one.message, str)}
        self.found: dict[str, dict[Message, list[str]]] = defaultdict(lambda: defaultdict(list))
        for one in history.ending.found:
            self.found[one.where][one.message].append(one.host)

    def source(self, message: Message) -> str:
        """The host that added a message; if it has no folder, also its life."""
        act = self.added[message]
        return act.host if act.host in self.history.durable else f"{act.host}.{act.life}"

    def is_lost_with_memory(self, message: Message) -> bool:
        """Whether a message was in the memory of a host without a folder, which has ended."""
        act = self.added[message]
        return act.host not in self.history.durable and self.ended_since(act.host, act.begin)

    def ended_since(self, host: str, tick: int) -> bool:
        return any(end > tick for end in self.history.ends.get(host, ()))

    def is_collected(self, message: Message) -> bool:
        """Whether a message was reported as collected; or logged, if its host ended before the
        report."""
        act = self.added[message]
        in_log = message in self.history.evicted and self.ended_since(act.host, act.begin)
        return message in self.told or in_log

    def was_killed_unconfirmed(self, act: MelonAct, message: Message) -> bool:
        """Whether a taker ended with its host before the message was confirmed. If another host
        has delivered the message, the `Doubt` of that host decides that the message returns. A
        directed message is confirmed at the host of the taker, before its process gets another."""
        added = self.added[message]
        if added.to is not None:
            unrecorded = self.history.unrecorded.get((act.host, act.life), ())
            return message in unrecorded and not self._has_later_mail(act)
        ends = self.history.ends.get(act.host, ())
        end = next((end for end in ends if end > act.begin), 0)
        return added.host != act.host and added.host in self.history.owed.get((act.host, end), ())

    def _has_later_mail(self, act: MelonAct) -> bool:
        """Whether the process of a take got a directed message in a later one."""
        return any(
            one.melon == act.melon
            and one.begin > (act.end or one.begin)
            and any(message in self.mail for message in one.messages)
            for one in self.takes
        )

    def may_have_lost(self, act: MelonAct) -> bool:
        """Whether an operation may have taken a message that it could neither return nor give
        back."""
        if act.how == "killed":
            return True
        gone = act.host not in self.history.durable and self.ended_since(act.host, act.begin)
        return not act.is_done and gone


def check_failures(case: Case) -> Iterator[Fault]:
    """No operation fails, unless a host is full of pinned messages or its disk is full; and none is
    pending."""
    for act in case.history.acts:
        is_full = act.verb in ADDS and act.host in case.history.bounded
        is_excused = (is_full and "SpaceFull" in act.error) or "DiskFull" in act.error
        if act.how == "failed" and not is_excused:
            yield Fault("failed", str(act))
    for what, things in case.history.ending.remains.items():
        yield Fault("left behind", f"{what}: {things}")


# Answers


def check_answers(case: Case) -> Iterator[Fault]:
    """A message that is returned matches the request, and the process may have it."""
    for act in [*case.takes, *case.reads]:
        for message in act.messages:
            adding = case.added.get(message)
            what = f"{name_of(message)}, by {act.melon}"
            if adding is None or (act.end is not None and adding.begin > act.end):
                yield Fault("made up", f"{what}, was never added")
                continue
            if act.asked is not None and not act.asked.matches(message):
                yield Fault("not asked for", f"{what}, who asked for {act.asked}")
            if (adding.verb == "write") != (act.verb in READS):
                yield Fault("mixed up", f"{what}: to {adding.verb} and to {act.verb}")
            if adding.to not in (None, act.host):
                yield Fault("opened", f"{what}, was directed to {adding.to}")
            if act.sender is not None and (adding.to is None or adding.host != act.sender):
                yield Fault("wrong sender", f"{what}, who asked for those of {act.sender}")


def check_twice(case: Case) -> Iterator[Fault]:
    """No process reads a message twice, and one process takes it, apart from those that were
    killed. A host without a folder forgets in a crash which directed messages it has taken."""
    for melon, read in case.read_by.items():
        for message, times in read.items():
            if times > 1:
                yield Fault("read twice", f"{name_of(message)}, by {melon}")
    for message, takers in case.takers.items():
        if message not in case.added:
            continue
        still = case.found["stored"].get(message, [])
        forgets = case.added[message].to is not None and takers[0].host not in case.history.durable
        takers = [act for act in takers if not case.was_killed_unconfirmed(act, message)]
        lives = {(act.host, act.life) for act in takers}
        once = len(lives) if forgets else 1
        if len(takers) + len(still) > once:
            melons = ", ".join(act.melon for act in case.takers[message])
            yield Fault("taken twice", f"{name_of(message)}, by {melons}; left: {still}")
    for message, places in case.found["stored"].items():
        if len(places) > 1:
            yield Fault("taken twice", f"{name_of(message)} is at {places}")


# Order


def check_order(case: Case) -> Iterator[Fault]:
    """Of the messages of one source, one request returns the older one first. A message that is
    reserved for another taker is invisible for that time, so it may come late."""
    getters: dict[tuple[object, ...], list[MelonAct]] = defaultdict(list)
    for act in [*case.takes, *case.reads]:
        if act.messages:
            getters[act.melon, act.verb in READS, act.asked, act.sender].append(act)
    for acts in getters.values():
        got: dict[Message, MelonAct] = {}
        for act in acts:
            got |= {one: act for one in act.messages if one in case.added and one not in got}
        for place, (late, act) in enumerate(got.items()):
            for newer, before in list(got.items())[:place]:
                if _is_older(case, late, newer) and not _is_excused(case, late, newer, before, act):
                    text = f"{name_of(late)} came to {act.melon} after {name_of(newer)}"
                    yield Fault("out of order", text)


def _is_older(case: Case, one: Message, other: Message) -> bool:
    """Whether a message was certainly there when another was added at the same source. Both were
    written, or both stored."""
    first, second = case.added[one], case.added[other]
    return (
        first.end is not None
        and first.is_done
        and first.end < second.begin
        and (first.verb == "write") == (second.verb == "write")
        and case.source(one) == case.source(other)
    )


def _is_excused(case: Case, late: Message, newer: Message, before: MelonAct, act: MelonAct) -> bool:
    """Whether another operation may have reserved the late message when the newer one was returned
    to this process. A process may have several operations pending."""
    if act is not before and act.overlaps(before.begin, before.end):
        return True  # It is unknown which of the two came first.
    if before.verb in READS:
        rivals = [one for one in case.reads if one.melon == act.melon]
        since = before.begin
    elif case.added[late].to is not None and case.added[newer].to is not None:
        rivals = [one for one in case.takes if one.host == act.host]
        since = before.begin
    else:
        rivals = case.takes
        added = case.added[late].begin
        if any(added < fault < (act.end or fault) for fault in case.history.fault_ticks):
            return True  # It may have been in doubt.
        since = added - UNDER_WAY_TICKS
    return any(
        one not in (before, act)
        and one.asked is not None
        and one.asked.matches(late)
        and one.overlaps(since, before.end)
        for one in rivals
    )


# Places


def check_places(case: Case) -> Iterator[Fault]:
    """Only written messages are copied; directed messages are only in sealed form."""
    for one in sorted([*case.history.strays, *case.history.ending.found], key=repr):
        adding = case.added.get(one.message)
        if adding is None:
            yield Fault("made up", f"{name_of(one.message)} is at {one.host}")
        elif one.where not in _allowed_places(adding):
            yield Fault("copied", f"{name_of(one.message)} is in {one.where} at {one.host}")


def _allowed_places(adding: MelonAct) -> tuple[str, ...]:
    match adding.verb:
        case "write":
            return ("written", "copies")
        case "store":
            return ("stored",)
    return ("sealed",)


def check_secrets(case: Case) -> Iterator[Fault]:
    """The text of a directed message is readable at its writer and at its addressee only."""
    for number in sorted(case.history.overheard):
        yield Fault("opened", f"number {number} went over a link as it is")
    for one in sorted(case.history.plain, key=repr):
        message = case.numbers.get(one.number)
        adding = None if message is None else case.added[message]
        if adding is None or one.host not in (adding.host, adding.to):
            yield Fault("opened", f"number {one.number} can be read at {one.host}, in {one.where}")


# Collection


def check_collected(case: Case) -> Iterator[Fault]:
    """A message reported as collected is gone, and was not pinned; only hosts with a bound
    collect."""
    kinds = {"store": "stored", "write": "written"}
    for one in case.history.told:
        if one.host not in case.history.bounded:
            yield Fault("collected", f"{one.host} has no bound, and says so of {one.message}")
        if isinstance(one.message, str):
            continue
        adding = case.added.get(one.message)
        name = name_of(one.message)
        if adding is None or kinds.get(adding.verb) != one.kind:
            yield Fault("collected", f"{one.host} says of {name} that it was {one.kind}")
        elif adding.pin and adding.is_done and one.host == adding.host:
            yield Fault("collected", f"{name} was pinned, and collected at {one.host}")
        elif one.message in case.takers:
            yield Fault("collected", f"{name} was taken, and collected at {one.host}")
        elif one.host in case.found[one.kind].get(one.message, []):
            yield Fault("collected", f"{name} is at {one.host}, and collected there")


# Losses


def check_losses(case: Case) -> Iterator[Fault]:
    """A stored message was taken or is there, and a written message is there."""
    excuses = [act for act in case.takes if case.may_have_lost(act)]
    budget = {id(act): MANY if act.verb == "take_all" else 1 for act in excuses}
    for message, adding in case.added.items():
        if not adding.is_done or case.is_lost_with_memory(message) or case.is_collected(message):
            continue
        if adding.verb == "write" and adding.host not in case.found["written"].get(message, []):
            yield Fault("lost", f"{name_of(message)}, written at {adding.host}")
        if adding.verb != "store" or message in case.takers or message in case.found["stored"]:
            continue
        for act in excuses:
            # A message of another host stays there, in doubt, until the taker confirms it.
            fits = act.host == adding.host and _fits(act, message)
            if fits and budget[id(act)] and (act.end or adding.begin + 1) > adding.begin:
                budget[id(act)] -= 1
                break
        else:
            yield Fault("lost", f"{name_of(message)}, stored at {adding.host}")


def check_mail(case: Case) -> Iterator[Fault]:
    """A directed message is taken by its addressee, whichever host carries it, and then deleted by
    its writer. A taker that is killed has not taken it."""
    collected = Counter(
        (one.host, one.message) for one in case.history.told if one.kind == "directed"
    )
    for message, adding in case.added.items():
        if adding.verb != "send":
            continue
        carriers = case.found["sealed"].get(message, [])
        where = f"{name_of(message)}, for {adding.to}"
        if message in case.takers:
            if adding.host in carriers and not _may_stay(case, message):
                yield Fault("not let go", f"{where}, is at {carriers}")
        elif carriers:
            near = {adding.to, *case.history.ending.near.get(adding.to or "", ())}
            if not near.isdisjoint(carriers):
                yield Fault("not delivered", f"{where}, is at {carriers}")
        elif (
            adding.is_done
            and not case.is_lost_with_memory(message)
            and message not in case.history.evicted
        ):
            if not collected[adding.host, adding.to or ""]:
                yield Fault("lost", f"{where}, sent at {adding.host}")
            collected[adding.host, adding.to or ""] -= 1


def _fits(act: MelonAct, message: Message) -> bool:
    return act.asked is not None and act.asked.matches(message)


def _may_stay(case: Case, message: Message) -> bool:
    """Whether the receipt for a message may be missing: deleted for lack of room, without a
    carrier, or in the memory of a host that ended; or the host that would delete the message has
    ended."""
    adding = case.added[message]
    to = adding.to or ""
    forgot = to not in case.history.durable and case.ended_since(to, adding.begin)
    is_far = to != adding.host and to not in case.history.ending.near.get(adding.host, ())
    full = is_far and bool(case.history.tight)
    return forgot or full or to in case.history.bounded or case.is_lost_with_memory(message)


# Readers


def check_readers(case: Case) -> Iterator[Fault]:
    """A process that is there at the end has read all written messages that it reaches, at their
    hosts or as copies. It may miss a message whose copy was deleted for lack of room: at its own
    host, if the message is out of reach at its source; anywhere, if it has read a newer one."""
    ending = case.history.ending
    for melon, host in ending.melons.items():
        near = {host, *ending.near.get(host, ())}
        places: list[FoundMessage] = [
            one
            for one in ending.found
            if one.host in near
            and (one.where == "written" or (one.where == "copies" and host in case.history.copying))
        ]
        unread = {one.message for one in places} - set(case.read_by[melon])
        newest: dict[str, int] = {}
        for _, source, number, _ in case.read_by[melon]:
            newest[source] = max(number, newest.get(source, 0))
        written = {one.message for one in places if one.where == "written"}
        unread -= {
            message
            for message, hosts in case.history.given_way.items()
            if (host in hosts and message not in written) or message[2] < newest.get(message[1], 0)
        }
        for message in sorted(unread):
            if not message[0].startswith("late") and not case.is_collected(message):
                yield Fault("not read", f"{name_of(message)}, by {melon}")


def check_copies(case: Case) -> Iterator[Fault]:
    """Hosts near the source of a message that was collected have no copy of it any more."""
    near = case.history.ending.near
    for message, hosts in case.found["copies"].items():
        adding = case.added.get(message)
        if adding is None or adding.verb != "write" or case.is_lost_with_memory(message):
            continue
        if adding.host in case.found["written"].get(message, []):
            continue
        for host in hosts:
            is_told = {host, adding.host} <= case.history.copying and host in near[adding.host]
            if host == adding.host or is_told:
                yield Fault("stale", f"{name_of(message)} is gone, and a copy is at {host}")


def check_carriers(case: Case) -> Iterator[Fault]:
    """A host with room has a copy of each message that a connected host has copied, if the source
    of the message is not connected; even if no process here reads."""
    near = case.history.ending.near
    for message, hosts in case.found["copies"].items():
        adding = case.added.get(message)
        if adding is None or adding.verb != "write" or message in case.history.given_way:
            continue
        for host in sorted(case.history.copying - case.history.tight - {adding.host, *hosts}):
            if adding.host not in near[host] and not near[host].isdisjoint(hosts):
                yield Fault("not carried", f"{name_of(message)} is at {hosts}, and not at {host}")


# Waiting


def check_waiting(case: Case) -> Iterator[Fault]:
    """A waiting operation is woken, and a read finds the messages that are there."""
    for act in case.history.acts:
        if act.is_late and not (act.is_done and act.messages) and _was_added(case, act):
            yield Fault("not woken", f"{act}, and it was there")
        if act.is_probe and act.messages:
            yield Fault("not woken", f"{act}, although other operations have waited for it")
        if act.is_done and not act.messages and act.verb in READS:
            yield from _overlooked(case, act)


def _was_added(case: Case, act: MelonAct) -> bool:
    """Whether a message that the operation waited for was added, and not collected at once."""
    letting_go = {one.host for one in case.history.told if one.kind == "directed"}
    return any(
        adding.is_done
        and not case.is_collected(message)
        and not (adding.to is not None and adding.host in letting_go)
        for message, adding in case.added.items()
        if _fits(act, message)
    )


def _overlooked(case: Case, act: MelonAct) -> Iterator[Fault]:
    """Messages at the host of a read that found nothing, which were there the whole time."""
    for message, adding in case.added.items():
        was_there = (
            adding.verb == "write"
            and adding.is_done
            and adding.host == act.host
            and (adding.end or act.begin) < act.begin
            and not case.is_lost_with_memory(message)
            and not case.is_collected(message)
            and _fits(act, message)
        )
        if was_there and not any(
            message in one.messages or one.overlaps(act.begin, act.end)
            for one in case.reads
            if one.melon == act.melon and one is not act and one.begin < (act.end or 0)
        ):
            yield Fault("overlooked", f"{name_of(message)}: {act}")
