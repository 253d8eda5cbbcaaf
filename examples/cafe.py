"""Two laptops in a café share notes while they are connected; after they part, each has its own
notes. Then a third laptop connects, and a note that is written for it moves to it."""

import tupelo

NOTE = ("note", str, str)


def meet(host: tupelo.Host, name: str) -> None:
    """Wait until the host is connected to the host with this name."""
    host.presence.read(tupelo.HostPresence(name=name, state="engaged"))


def main() -> None:
    with tupelo.Host("ada", listen="127.0.0.1:0") as ada:
        ada_notes = ada.space("notes")
        ada_notes.write(("note", "ada", "the tulips are out"))

        with tupelo.Host("ben", listen="127.0.0.1:0", peers=[ada.address]) as ben:
            meet(ben, "ada")
            ben_notes = ben.space("notes")
            ben_notes.write(("note", "ben", "soup at one"))
            print("ada sees", ada_notes.read(("note", "ben", str)))
            print("ben sees", sorted(ben_notes.read_all(NOTE)))
            print("ben takes", ben_notes.take(("note", "ada", str)))

        ada.presence.read(tupelo.HostPresence(name="ben", state="departed"))
        print("alone, ada sees", ada_notes.read_all(NOTE))

        who = ada.presence.read(tupelo.HostPresence(name="ben"))
        print("ben has", who.state, "with a", who.how)

        cleo = tupelo.Host("cleo", listen="127.0.0.1:0", peers=[ada.address])
        meet(ada, "cleo")
        ada_notes.write(("note", "ada", "for cleo only"), to=cleo.id)
        note = cleo.space("notes").read(("note", str, str), scope=tupelo.HERE)
        print("cleo has", note, "and ada", ada_notes.count(NOTE, scope=tupelo.HERE))
        cleo.close()


if __name__ == "__main__":
    main()
