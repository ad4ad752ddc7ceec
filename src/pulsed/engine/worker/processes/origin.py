"""Where a new process finds the app, and how it loads it there."""

from __future__ import annotations

import importlib
import runpy
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pulsed.engine.worker.processes.messages import Origin
from pulsed.errors import ConfigError

MAIN = "__main__"
CHILD_MAIN = "__mp_main__"
"""The name of a script's module where it is imported and not started; as in ``multiprocessing``."""


def locate(app: object, url: str) -> Origin:
    """Return where an app is: as a global of an imported module, or of the script."""
    found = sorted(_globals_that_are(app), key=lambda place: place[0] == MAIN)
    if not found:
        raise ConfigError(
            'Handlers with executor="process" need an app that another process can import: assign '
            "it to a global of a module, as in `app = Pulse(...)`, not inside of a function."
        )
    module, attribute = found[0]
    script = None
    if module == MAIN:
        module, script = _main()
    return Origin(module, attribute, script, [str(folder) for folder in sys.path], url)


def _globals_that_are(app: object) -> Iterator[tuple[str, str]]:
    for module_name, module in list(sys.modules.items()):
        # Not getattr: a lazy module would import something.
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                yield module_name, name


def _main() -> tuple[str, str | None]:
    """Return the name of the module that was started with ``-m``, or else the script's file."""
    main = sys.modules[MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return spec.name, None
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        raise ConfigError(
            'Handlers with executor="process" cannot be declared in an interactive session: '
            "another process has to import them. Put them into a module."
        )
    return CHILD_MAIN, str(Path(file).resolve())


_loading = False


def refuse_while_loading() -> None:
    """Refuse to start a worker in a job process, where an app is only imported."""
    if _loading:
        raise ConfigError(
            "This module starts a worker when it is imported. Put that below "
            '`if __name__ == "__main__":`, because the processes of handlers with '
            'executor="process" import it.'
        )


def load(origin: Origin) -> Any:
    """Return the app, in a new process."""
    global _loading  # noqa: PLW0603 - what this process does
    _loading = True
    try:
        return _loaded(origin)
    finally:
        _loading = False


def _loaded(origin: Origin) -> Any:
    sys.path[:] = origin.path
    if origin.script is not None:
        module = types.ModuleType(CHILD_MAIN)
        sys.modules[CHILD_MAIN] = sys.modules[MAIN] = module
        module.__dict__.update(runpy.run_path(origin.script, run_name=CHILD_MAIN))
    else:
        module = importlib.import_module(origin.module)
    app = getattr(module, origin.attribute)
    if not _is_at(app, origin.url):
        app.url = origin.url
    return app


def _is_at(app: Any, url: str) -> bool:
    try:
        return bool(app.url == url)
    except ConfigError:  # it names none
        return False
