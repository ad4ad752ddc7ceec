"""Loads the app that ``module:attribute`` names, with errors about the user's code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from pulsed.app import Pulse
from pulsed.cli.exits import Code, CommandError
from pulsed.cli.variables import APP_VARIABLE
from pulsed.errors import ConfigError

FORM = "Write it as module:attribute, for example shop.jobs:app."
MOST_FRAMES = 5

_OURS = str(Path(__file__).parent.parent)


def load_app(name: str | None) -> Pulse:
    """Return the app that ``name``, or else the environment, names."""
    name = name or os.environ.get(APP_VARIABLE)
    if not name:
        raise CommandError(f"which app? {FORM} ${APP_VARIABLE} can hold it too.", Code.USAGE)
    module_name, _, attribute = name.partition(":")
    _refuse_paths(name, module_name)
    module = _import(module_name)
    found = _attribute(module, attribute) if attribute else _only_app(module)
    if not isinstance(found, Pulse):
        raise CommandError(
            f"{name} is {_kind(found)}, not a Pulse app.{_suggestion(module)}", Code.USAGE
        )
    return found


def check_handlers(app: Pulse, name: str) -> None:
    """Load and resolve every handler of an app; a worker without any is a mistake."""
    try:
        app.registry.resolve_all()
    except ConfigError:
        raise
    except Exception as error:
        raise CommandError(f"{name} cannot load its handlers.\n{shortened(error)}") from error
    if not len(app.registry):
        raise CommandError(
            f"{name} has no handlers. Declare jobs with @app.job in a module it imports, or name "
            "their modules in Pulse(imports=[...]).",
            Code.USAGE,
        )


def shortened(error: BaseException) -> str:
    """Return a traceback with the user's frames only, the last ones of them."""
    trace = traceback.TracebackException.from_exception(error, compact=True)
    parts: list[traceback.TracebackException | None] = [trace]
    while part := parts.pop():
        part.stack = traceback.StackSummary.from_list(
            [frame for frame in part.stack if not _is_machinery(frame.filename)][-MOST_FRAMES:]
        )
        parts += [part.__cause__ or part.__context__] if not parts else []
    return "".join(trace.format()).rstrip()


def _is_machinery(filename: str) -> bool:
    return filename.startswith((_OURS, "<frozen importlib")) or "importlib/__init__" in filename


def _refuse_paths(name: str, module_name: str) -> None:
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        stem = module_name.removesuffix(".py").strip("./\\").replace("/", ".").replace("\\", ".")
        raise CommandError(
            f"{name} looks like a file; name the module instead: {stem}:app.", Code.USAGE
        )
    if not module_name:
        raise CommandError(f"{name!r} names no module. {FORM}", Code.USAGE)


def _import(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise CommandError(
                f"there is no module {error.name!r} in {folder} or on the Python path. {FORM}",
                Code.USAGE,
            ) from error
        raise _broken(name, error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: a script that ends at its import
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> CommandError:
    return CommandError(f"{name} cannot be imported.\n{shortened(error)}")


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CommandError(
                f"{module.__name__} has no attribute {path!r}.{_suggestion(module)}", Code.USAGE
            ) from None
    return found


def _only_app(module: ModuleType) -> Pulse:
    names = _apps(module)
    if len({id(getattr(module, name)) for name in names}) == 1:
        app: Pulse = getattr(module, names[0])
        return app
    if not names:
        raise CommandError(f"{module.__name__} has no Pulse app in it. {FORM}", Code.USAGE)
    choices = " or ".join(f"{module.__name__}:{name}" for name in names)
    raise CommandError(f"{module.__name__} has several apps; name one: {choices}.", Code.USAGE)


def _suggestion(module: ModuleType) -> str:
    names = _apps(module)
    return f" Did you mean {module.__name__}:{names[0]}?" if names else f" {FORM}"


def _apps(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, Pulse)]


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return "a class"
    return "a function" if callable(value) else f"an object of type {type(value).__name__}"
