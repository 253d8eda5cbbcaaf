"""A JavaSpaces command queue: commands are executed one at a time, in the order in which they were
appended, with any number of writers and workers ("clerks").

The head and the tail of the queue are counters, and entries too. To append a command, a program
takes the tail, writes the command with its number, and writes the tail plus one, all in one
transaction. A clerk takes the head in the same way, so other clerks wait. If a clerk fails, its
transaction is aborted and nothing has changed.

python command_queue.py               in memory
python command_queue.py queue.tupelo  in a file

"""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import tupelo
from tupelo.models.javaspaces import NO_WAIT, Entry, JavaSpace, TransactionManager


@dataclass
class Counter(Entry):
    """The next number at one end of the queue."""

    end: str | None = None
    number: int | None = None


@dataclass
class Account(Entry):
    owner: str | None = None
    balance: int | None = None


@dataclass
class Command(Entry):
    """A command with its number in the queue. Subclasses define `execute`."""

    number: int | None = None

    def execute(self, space: JavaSpace, txn) -> str:
        raise NotImplementedError


@dataclass
class Open(Command):
    owner: str | None = None

    def execute(self, space, txn):
        space.write(Account(self.owner, 0), txn)
        return f"{self.owner} has an account"


@dataclass
class Deposit(Command):
    owner: str | None = None
    amount: int | None = None

    def execute(self, space, txn):
        account = space.take(Account(self.owner), txn, NO_WAIT)
        if account is None:
            return f"{self.owner} has no account"
        account.balance += self.amount
        space.write(account, txn)
        return f"{self.owner} has {account.balance}"


def append(space: JavaSpace, manager: TransactionManager, command: Command) -> None:
    with manager.create(lease=10).transaction as txn:
        tail = space.take(Counter("tail"), txn)
        command.number = tail.number
        space.write(command, txn)
        space.write(Counter("tail", tail.number + 1), txn)


def clerk(space: JavaSpace, manager: TransactionManager) -> list[tuple[int, str]]:
    """Execute commands in their order until the queue is empty; return numbers and results."""
    done = []
    while True:
        with manager.create(lease=10).transaction as txn:
            head = space.take(Counter("head"), txn)
            command = space.take(Command(head.number), txn, NO_WAIT)
            space.write(Counter("head", head.number + (command is not None)), txn)
            if command is None:
                return done
            done.append((command.number, command.execute(space, txn)))


def main(path: str | None = None) -> None:
    space, manager = JavaSpace(tupelo.Space("queue", path=path)), TransactionManager()
    if space.read(Counter("tail"), None, NO_WAIT) is None:
        for end in ("head", "tail"):
            space.write(Counter(end, 1))
    deposits = [("ada", 5), ("cleo", 1), ("ada", 7), ("ben", 2)]
    commands = [
        *(Open(owner=name) for name in ("ada", "ben")),
        *(Deposit(owner=name, amount=amount) for name, amount in deposits),
    ]
    for command in commands:
        append(space, manager, command)
    with ThreadPoolExecutor() as threads:
        clerks = list(threads.map(clerk, [space] * 3, [manager] * 3))
    for number, what in sorted(done for lines in clerks for done in lines):
        print(f"{number}. {what}")
    space.close()
    manager.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
