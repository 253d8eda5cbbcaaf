"""Classes that this program does not know, as if other programs had written their entries."""

from __future__ import annotations

import pytest

from tupelo.values import kind


def forget(monkeypatch: pytest.MonkeyPatch, cls: type) -> None:
    """Let the program not know this class, nor find any other by its name."""
    monkeypatch.delitem(kind._class_of_name, kind.name_of(cls), raising=False)
    monkeypatch.setattr(kind, "_find_class", lambda name: None)


def learn(monkeypatch: pytest.MonkeyPatch, cls: type) -> None:
    """Let the program know this class again."""
    monkeypatch.setitem(kind._class_of_name, kind.name_of(cls), cls)
