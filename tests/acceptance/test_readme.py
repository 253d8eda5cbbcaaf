"""The README and the pages of docs/ keep their word: what they show runs, and prints what they say.

A python block runs as a program of its own. A text block directly after it is what it prints. One
that says "python continued" goes on with the program of the python block before it on its page.
In a bash block, `make` lines name existing targets and `tupelo` lines existing commands.
"""

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner

from tupelo.apps.commands import app

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TIMEOUT_SECONDS = 240

FENCE = re.compile(r"^\s*(?P<ticks>`{3,})\s*(?P<language>\w*)(?P<continued> continued$)?")
HEADING = re.compile(r"^#{1,6}\s+(?P<title>.+?)\s*#*$")
TARGETS = re.compile(r"^(?P<names>[a-z][\w -]*):(?!=)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block, and the block that follows it with nothing but blank lines between."""

    document: str
    heading: str
    line: int
    language: str
    text: str
    continued: bool = False
    follower: "Block | None" = field(default=None, repr=False)

    @property
    def output(self) -> str | None:
        """What the document says this block prints, if it says so."""
        return self.follower.text if self.follower and self.follower.language == "text" else None


def blocks(document: str, markdown: str) -> list[Block]:
    """Read from the last line to the first, so that a block is built after its follower."""
    lines = markdown.splitlines(keepends=True)
    found: list[Block] = []
    for start, end, language, continued, heading in reversed(list(fences(lines))):
        between = lines[end + 1 : found[-1].line - 1] if found else ["no follower"]
        follower = None if "".join(between).strip() else found[-1]
        text = dedent("".join(lines[start + 1 : end]))
        found.append(Block(document, heading, start + 1, language, text, continued, follower))
    return found[::-1]


def fences(lines: list[str]) -> Iterator[tuple[int, int, str, bool, str]]:
    """First line, last line, language, whether it is continued, and nearest heading above, of
    every fenced block."""
    heading, start, ticks, language, continued = "top", None, "", "", False
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if start is not None:
            if fence and len(fence["ticks"]) >= len(ticks) and not fence["language"]:
                yield start, number, language, continued, heading
                start = None
        elif fence:
            start, ticks, language = number, fence["ticks"], fence["language"]
            continued = fence["continued"] is not None
        elif title := HEADING.match(line):
            heading = title["title"]
    assert start is None, f"the block that opens on line {(start or 0) + 1} is never closed"


def all_blocks() -> list[Block]:
    documents = [README, *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        block
        for path in documents
        if path.exists()
        for block in blocks(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    ]


def programs(found: list[Block]) -> list[list[Block]]:
    """The python blocks of every program, the continued ones with those that they continue."""
    made: list[list[Block]] = []
    for block in found:
        if block.language == "python" and not block.continued:
            made.append([block])
        elif block.language == "python":
            assert made and made[-1][0].document == block.document, f"{block} continues nothing"
            made[-1].append(block)
    return made


def command_lines(block: Block) -> list[str]:
    joined = block.text.replace("\\\n", " ").splitlines()
    return [line.strip().removeprefix("$ ") for line in joined]


def cases(found: list[tuple[Block, Any]]) -> list[object]:
    """One case each, named by document and nearest heading, and numbered below that heading."""
    seen: Counter[str] = Counter()
    params: list[object] = []
    for block, content in found:
        place = f"{block.document}: {block.heading}"
        seen[place] += 1
        params.append(pytest.param(block, content, id=f"{place} {seen[place]}"))
    return params


BLOCKS = all_blocks()
PROGRAMS = cases([(program[0], program) for program in programs(BLOCKS)])
COMMANDS = cases(
    [
        (block, line)
        for block in BLOCKS
        if block.language == "bash"
        for line in command_lines(block)
        if line.startswith(("make ", "tupelo "))
    ]
)


def run(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=directory,
            env=os.environ | {"NO_COLOR": "1", "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"still running after {TIMEOUT_SECONDS} s; it had printed {late.stdout!r}")


def test_the_readme_shows_programs():
    assert README.exists()
    assert any(block.document == "README.md" and block.language == "python" for block in BLOCKS)


@pytest.mark.parametrize(("block", "program"), PROGRAMS)
def test_a_program_runs_and_prints_what_the_page_says(block, program, tmp_path):
    script = tmp_path / "program.py"
    text = ""
    for part in program:  # Blank lines in front make a traceback's line number the page's.
        text += "\n" * (part.line - text.count("\n")) + part.text
    script.write_text(text, "utf-8")
    directory = tmp_path / "work"
    directory.mkdir()

    result = run([sys.executable, str(script)], directory)

    assert result.returncode == 0, f"{block.document}:{block.line}\n{result.stderr}"
    said = [part.output for part in program if part.output is not None]
    if said:
        assert result.stdout == "".join(said)


@pytest.mark.parametrize(("block", "line"), COMMANDS)
def test_a_command_exists(block, line):
    place = f"{block.document}:{block.line}"
    program, *arguments = words(line)
    if program == "make":
        unknown = make_targets_named(arguments) - make_targets()
        assert not unknown, f"{place} names no target of the Makefile: {', '.join(unknown)}"
    else:
        result = CliRunner().invoke(app, [*arguments, "--help"])
        assert result.exit_code == 0, f"{place} {line}\n{result.output}"
        assert "usage" in result.output.lower(), f"{place} {line}\n{result.output}"


def words(line: str) -> list[str]:
    """The words of a command up to the first shell operator, comment or `--`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[str] = []
    for word in lexer:
        if word == "--" or (word and set(word) <= set("();<>|&")):
            break
        found.append(word)
    return found


def make_targets_named(arguments: list[str]) -> set[str]:
    return {word for word in arguments if not word.startswith("-") and "=" not in word}


def make_targets() -> set[str]:
    found = TARGETS.finditer((ROOT / "Makefile").read_text("utf-8"))
    return {target for match in found for target in match["names"].split()}


PAGE = """\
# Title

```python
# not a heading
print("a")
```

```text
a
```

## Next

1. In a list:

   ```python
   if True:
       print("b")
   ```

   Prose between.

```text
not output
```

```python continued
print("c")
```

````text
```python
never run
```
````
"""


def test_blocks_are_read_as_a_reader_sees_them():
    found = blocks("page.md", PAGE)
    assert [(block.heading, block.language, block.output) for block in found] == [
        ("Title", "python", "a\n"),
        ("Title", "text", None),
        ("Next", "python", None),
        ("Next", "text", None),
        ("Next", "python", "```python\nnever run\n```\n"),
        ("Next", "text", None),
    ]
    assert found[2].text == 'if True:\n    print("b")\n'
    assert [[part.line for part in program] for program in programs(found)] == [[3], [16, 27]]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tupelo tour --fast  # a comment", ["tupelo", "tour", "--fast"]),
        ("tupelo ping tupelo://[::1]:7700/a ''", ["tupelo", "ping", "tupelo://[::1]:7700/a", ""]),
        ("tupelo host --path=a.tupelo &", ["tupelo", "host", "--path=a.tupelo"]),
        ("tupelo read jobs '(\"job\", int)' | head -1", ["tupelo", "read", "jobs", '("job", int)']),
        ('make test ARGS="-k name"', ["make", "test", "ARGS=-k name"]),
    ],
)
def test_words_stop_where_the_command_does(line, expected):
    assert words(line) == expected
