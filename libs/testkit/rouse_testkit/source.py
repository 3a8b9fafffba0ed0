"""Our own source code, parsed, for the tests that hold the walls between packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GENERATED = ROOT / "libs/contracts/rouse_contracts/gen"


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: Path

    @property
    def name(self) -> str:
        """The path from the repository's root."""
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[tuple[str, int]]:
        """Every module that is imported anywhere in the file, by its full name, with the line."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.append((node.module, node.lineno))
        return found

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Every call with the dotted name of what is called, as it is written."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                yield dotted(node.func), node

    def at(self, node: ast.AST) -> str:
        """`file:line`, for messages."""
        return f"{self.name}:{getattr(node, 'lineno', 1)}"

    def line(self, node: ast.AST) -> str:
        """The text of the line where a node begins."""
        return self.lines[getattr(node, "lineno", 1) - 1]


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or an attribute; what is computed shows as `?`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


@cache
def sources(*folders: str) -> tuple[Source, ...]:
    """The Python files below folders of the repository, without generated and cached ones."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(Source(path) for path in paths if GENERATED not in path.parents and "__pycache__" not in path.parts)


def services() -> list[Path]:
    """The package folder of each service."""
    return sorted(path for path in (ROOT / "services").glob("*/rouse_*") if path.is_dir())
