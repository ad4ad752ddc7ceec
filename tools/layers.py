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

# Of each package its parts (modules and sub-packages), lowest layer first. Parts of one layer may
# import one another, but not in a circle. `__init__` is the front door, above all the others.
LAYERS: dict[str, list[set[str]]] = {
    "pulsed": [
        {"batches", "compiled", "errors", "extras", "listen_address", "version", "wording"},
        {"model"},
        {"events"},
        {"handler"},
        {"store"},
        {"engine"},
        {"client"},
        {"rpc"},
        {"app_database"},
        {"app"},
        {"metrics", "testing", "tracing", "web"},
        {"cli", "pytest_plugin"},
        {"contrib"},
        {"__init__", "__main__"},
    ],
    "pulsed.store": [
        {
            "base",
            "blocking",
            "connections",
            "controls",
            "bulk",
            "event_bus",
            "fork",
            "listener",
            "log_throttle",
            "lone_submits",
            "per_loop",
            "results",
            "retry_options",
            "rollups",
            "schedules",
            "step_thread",
            "streams",
            "submit_group",
            "submitter",
            "workflows",
        },
        {"encoded", "retrying"},
        {"sql"},
        {"verbs"},
        {"migrations"},
        {"sql_store"},
        {"postgres", "sqlite", "tokens"},
        {"open"},
    ],
    "pulsed.engine": [
        {
            "around",
            "database_clock",
            "error_text",
            "forever",
            "governed",
            "job_logging",
            "lanes",
            "limits",
            "load",
            "queues",
            "shared_reads",
            "state_reads",
            "why",
        },
        {"held_back"},
        {"enqueuing"},
        {"workflow"},
        {"context"},
        {"process", "stats", "upkeep"},
        {"submissions"},
        {"worker"},
        {"doctor"},
        {"overview"},
    ],
    "pulsed.rpc": [
        {"address", "generated"},
        {"messages"},
        {"client", "server"},
        {"open"},
    ],
    "pulsed.metrics": [
        {"counts", "endpoint", "process"},
        {"load", "probes"},
        {"exposition"},
        {"monitoring"},
    ],
    "pulsed.web": [
        {"access", "charts", "live", "performing", "redaction", "render", "summary"},
        {"reasons"},
        {"json_text", "new_job", "runs", "schedule_form", "waterfall"},
        {"guard"},
        {"site"},
        {"control_form"},
        {"login", "pages"},
        {"routes"},
        {"dashboard"},
        {"serve"},
    ],
    "pulsed.testing": [
        {"caller_thread", "clock", "context", "enqueued", "faults", "ran"},
        {"worker"},
        {"draining"},
        {"sandbox"},
    ],
    "pulsed.cli": [
        {"groups", "plain", "reloading", "starter", "streams", "variables"},
        {"exits"},
        {"prompt", "view"},
        {"logs", "options"},
        {"banner"},
        {"commands"},
        {"root"},
    ],
}
HEIGHTS = {
    package: {"__init__": len(layers)}
    | {part: height for height, layer in enumerate(layers) for part in layer}
    for package, layers in LAYERS.items()
}


@dataclass(frozen=True)
class Import:
    """One import of one part of a package by another."""

    path: Path
    line: int
    package: str
    importer: str
    imported: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.importer} imports {self.imported}"


def problems(source: Path) -> list[str]:
    """Everything wrong with the imports of `source`/pulsed, as lines for people."""
    unknown = [
        f"{path}: {part} is in no layer; add it to the table in tools/layers.py"
        for package, heights in HEIGHTS.items()
        for part, path in parts(source.joinpath(*package.split(".")))
        if part not in heights
    ]
    imports = [found for path in files(source) for found in imports_of(path, source)]
    return unknown + upward(imports) + circles(imports)


def parts(package: Path) -> Iterator[tuple[str, Path]]:
    """The modules and sub-packages of a package, with where they are."""
    for path in sorted(package.iterdir()) if package.is_dir() else ():
        if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py"))):
            yield path.stem, path


def files(source: Path) -> list[Path]:
    """Every Python file of the package."""
    return sorted((source / PACKAGE).rglob("*.py"))


def imports_of(path: Path, source: Path) -> Iterator[Import]:
    """The imports in one file that lead to another part of a package they share."""
    module = path.relative_to(source).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        for target in targets(node, module):
            found = crossing(module, module_of(target, source))
            if found is not None:
                yield Import(path, getattr(node, "lineno", 0), *found)


def targets(node: ast.AST, module: tuple[str, ...]) -> Iterator[list[str]]:
    """The dotted names that an import statement in `module` may load, split at the dots."""
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        # Relative to the file's own package; `module` still ends with the file (or `__init__`).
        base = list(module[: len(module) - node.level]) if node.level else []
        base += node.module.split(".") if node.module else []
        yield from ([*base, alias.name] for alias in node.names)


def module_of(target: list[str], source: Path) -> tuple[str, ...]:
    """The module that a dotted name is in; that of a package's own names is its `__init__`."""
    for length in range(len(target), 0, -1):
        place = source.joinpath(*target[:length])
        if place.is_dir():
            return (*target[:length], "__init__")
        if place.with_suffix(".py").exists():
            return tuple(target[:length])
    return ()


def crossing(module: tuple[str, ...], target: tuple[str, ...]) -> tuple[str, str, str] | None:
    """The innermost layered package that two modules share, and the part of each in it."""
    shared = 0
    while shared < min(len(module), len(target)) and module[shared] == target[shared]:
        shared += 1
    package = ".".join(module[:shared])
    if package not in LAYERS or shared in (len(module), len(target)):
        return None
    return package, module[shared], target[shared]


def upward(imports: list[Import]) -> list[str]:
    """The imports that lead from a lower layer to a higher one."""
    return [
        f"{found}, which lies above it"
        for found in imports
        if HEIGHTS[found.package].get(found.imported, -1)
        > HEIGHTS[found.package].get(found.importer, len(LAYERS[found.package]) + 1)
    ]


def circles(imports: list[Import]) -> list[str]:
    """The circles among parts of one layer, each said once."""
    found: dict[tuple[str, frozenset[str]], list[str]] = {}
    for package, heights in HEIGHTS.items():
        edges: dict[str, set[str]] = {}
        for each in imports:
            level = heights.get(each.importer) == heights.get(each.imported)
            if each.package == package and level:
                edges.setdefault(each.importer, set()).add(each.imported)
        for start in sorted(edges):
            for circle in walk([start], edges):
                found.setdefault((package, frozenset(circle)), circle)
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
