"""The import layers of pulsed, and the check that every import points down.

Run by `dev.py check`. Imports are read from the syntax tree, so those inside functions and under
`if TYPE_CHECKING` count as well: a type that points up is a design that points up.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "pulsed"

# Lowest first. Modules of one layer may import one another, but not in a circle.
LAYERS: list[set[str]] = [
    {"batches", "errors", "extras", "version", "wording"},
    {
        "audit",
        "job",
        "lifecycle",
        "backoff",
        "page",
        "retention",
        "schedule",
        "step",
        "tally",
        "timetable",
        "workflow",
    },
    {"handler"},
    {"store"},
    {"engine"},
    {"client"},
    {"rpc", "web"},
    {"app"},
    {"cli", "contrib", "testing"},
    {"__init__", "__main__"},
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}


@dataclass(frozen=True)
class Import:
    """One import of one part of pulsed by another; a part is a top-level module or package."""

    path: Path
    line: int
    importer: str
    imported: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.importer} imports {self.imported}"


def problems(source: Path) -> list[str]:
    """Everything wrong with the imports of `source`/pulsed, as lines for people."""
    unknown = [
        f"{path}: {part} is in no layer; add it to the table in tools/layers.py"
        for part, path in parts(source / PACKAGE)
        if part not in HEIGHT
    ]
    imports = [found for path in files(source) for found in imports_of(path, source)]
    return unknown + upward(imports) + circles(imports)


def parts(package: Path) -> Iterator[tuple[str, Path]]:
    """The top-level modules and packages, with where they are."""
    for path in sorted(package.iterdir()):
        if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py"))):
            yield path.stem, path


def files(source: Path) -> list[Path]:
    """Every Python file of the package."""
    return sorted((source / PACKAGE).rglob("*.py"))


def imports_of(path: Path, source: Path) -> Iterator[Import]:
    """The imports in one file that lead to another part of pulsed."""
    module = path.relative_to(source).with_suffix("").parts
    importer = module[1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        for target in targets(node, module):
            imported = part_of(target, source / PACKAGE)
            if imported not in (None, importer):
                yield Import(path, getattr(node, "lineno", 0), importer, str(imported))


def targets(node: ast.AST, module: tuple[str, ...]) -> Iterator[list[str]]:
    """The dotted names that an import statement in `module` may load, split at the dots."""
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        # Relative to the file's own package; `module` still ends with the file (or `__init__`).
        base = list(module[: len(module) - node.level]) if node.level else []
        base += node.module.split(".") if node.module else []
        yield from ([*base, alias.name] for alias in node.names)


def part_of(target: list[str], package: Path) -> str | None:
    """The part of pulsed that a dotted name belongs to; None if it is somebody else's."""
    if target[0] != PACKAGE:
        return None
    if len(target) == 1:
        return "__init__"
    name = target[1]
    is_module = (package / name).is_dir() or (package / f"{name}.py").exists()
    return name if is_module else "__init__"  # `from pulsed import Pulse` loads the front door


def upward(imports: list[Import]) -> list[str]:
    """The imports that lead from a lower layer to a higher one."""
    return [
        f"{found}, which lies above it"
        for found in imports
        if HEIGHT.get(found.imported, -1) > HEIGHT.get(found.importer, len(LAYERS))
    ]


def circles(imports: list[Import]) -> list[str]:
    """The circles among parts of one layer, each said once."""
    edges: dict[str, set[str]] = {}
    for each in imports:
        if HEIGHT.get(each.importer) == HEIGHT.get(each.imported):
            edges.setdefault(each.importer, set()).add(each.imported)
    found: dict[frozenset[str], list[str]] = {}
    for start in sorted(edges):
        for circle in walk([start], edges):
            found.setdefault(frozenset(circle), circle)
    return [f"import circle: {' → '.join(circle)}" for circle in found.values()]


def walk(path: list[str], edges: dict[str, set[str]]) -> Iterator[list[str]]:
    """Every way from the first of `path` back to itself."""
    for following in sorted(edges.get(path[-1], ())):
        if following == path[0]:
            yield [*path, following]
        elif following not in path:
            yield from walk([*path, following], edges)


def main() -> int:
    """Print the problems; 1 if there is any."""
    source = Path(__file__).resolve().parent.parent / "src"
    found = problems(source)
    for problem in found:
        print(problem)
    if not found:
        print(f"layers: {len(files(source))} files, every import points down")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
