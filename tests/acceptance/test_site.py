"""The pages make a site: every link leads somewhere, and nothing is loaded from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tupelo

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
LOADED = re.compile(r"<(?:script|img|iframe)[^>]* src=\"(?:https?:)?//|<link[^>]* href=\"https?:")


def test_every_decision_is_listed():
    linked = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (DECISIONS / "README.md").read_text("utf-8"))
    assert linked == sorted(path.name for path in DECISIONS.glob("[0-9]*.md"))


def test_the_site_is_built_without_warnings(tmp_path):
    pytest.importorskip("mkdocs", reason="needs tupelo[docs]")
    pytest.importorskip("mkdocstrings", reason="needs tupelo[docs]")
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr

    pages = {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}
    assert {"index.html", "howto/deploy.html", "examples/job_queue.html"} <= set(pages)
    assert not [name for name, html in pages.items() if LOADED.search(html)]
    shown = set(re.findall(r'id="tupelo\.(\w+)"', pages["reference/tupelo.html"]))
    assert shown >= set(tupelo.__all__) - {"aio", "errors"}  # These have pages of their own.
