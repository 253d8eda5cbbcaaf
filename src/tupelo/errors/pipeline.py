"""The errors of the pipeline."""

from __future__ import annotations

from tupelo.errors.root import TupeloError


class PipelineError(TupeloError):
    """Something about the change log on Spark."""


class NoJava(PipelineError):
    """Spark needs a Java, of version `least` or newer; `tried` says what was found."""

    def __init__(self, least: int, tried: list[str]) -> None:
        found = "; ".join(tried) or "there is none in JAVA_HOME or PATH"
        super().__init__(
            f"Spark needs Java {least} or newer ({found}): install one,"
            ' or use the one from Python\'s registry: pip install "tupelo[java]"'
        )
        self.least = least
        self.tried = tried


class CorruptSegment(PipelineError):
    """The file `path` of an archive is torn, altered or gone; nothing of it was used."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}")
        self.path = path


class WrongSchema(PipelineError):
    """The file `path` has `version` of the schema, and this Tupelo does not know that one."""

    def __init__(self, path: str, version: int, known: int) -> None:
        super().__init__(
            f"{path} has version {version} of the schema, and this Tupelo knows {known}"
        )
        self.path = path
        self.version = version


class CannotSink(PipelineError):
    """The rows cannot become entries, or not these ones: nothing of them was written."""


class UnknownTable(PipelineError):
    """There is no table of this `name`; `tables` are those that there are."""

    def __init__(self, name: str, tables: list[str], *, quote: bool = False) -> None:
        hint = f"write it as `{name}`" if quote else f"there are {', '.join(tables)}"
        super().__init__(f"there is no table {name!r}: {hint}")
        self.name = name
        self.tables = tables


class AuditFailed(PipelineError):
    """The logs say what cannot be: `faults` is how often, by the name of the fault."""

    def __init__(self, faults: dict[str, int]) -> None:
        told = ", ".join(f"{name} {count}" for name, count in sorted(faults.items()))
        super().__init__(f"the audit failed: {told}")
        self.faults = faults
