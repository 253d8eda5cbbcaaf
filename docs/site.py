"""Hooks of mkdocs: the examples and the changelog, which are outside docs/, become pages too, and
links that lead there, or from there, are adapted. In the repository all links stay as they are."""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def outside() -> dict[str, str]:
    """The pages of the site that are made of files outside docs/, by the path of the file."""
    programs = sorted((ROOT / "examples").glob("*.py"))
    pages = {f"examples/{program.name}": f"examples/{program.stem}.md" for program in programs}
    return {"CHANGELOG.md": "CHANGELOG.md", "examples/README.md": "examples/index.md", **pages}


def on_files(files, config):
    for path, page in outside().items():
        text = (ROOT / path).read_text("utf-8")
        if path.endswith(".py"):
            text = f"# {path}\n\n```python\n{text}```\n"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    pages = outside()
    sources = {target: path for path, target in pages.items()}
    source = sources.get(page.file.src_uri, join("docs", page.file.src_uri))

    def adapt(link: re.Match[str]) -> str:
        path = normpath(join(dirname(source), link["path"]))
        if path not in pages and source not in pages:
            return link[0]
        target = pages.get(path, path.removeprefix("docs/"))
        return relpath(target, dirname(page.file.src_uri) or ".") + (link["anchor"] or "")

    return LINK.sub(adapt, markdown)
