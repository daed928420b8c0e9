"""The order in which hooks build on each other, read from the files that they bring and touch."""

import ast
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath

from . import PatchsetError, hooks
from .hooks import Hook

_PACKAGE = "executorch"


def ordered(
    loaded: list[Hook],
    owners: dict[str, Hook],
    new: dict[str, Path],
    shipped: Collection[str],
    read: Callable[[str], bytes],
) -> list[Hook]:
    """The hooks that a source checkout takes, each behind those that bring what it imports, else by file name.

    ``owners`` gives the hook of each of the ``new`` files; ``read`` the pristine bytes of a ``shipped`` file. A hook
    needs another one if a Python file of it, new or hooked, imports a module that the other brings, or a name that the
    other puts into an upstream module; or if another new file of it speaks of a table that the other puts into a schema.
    Raises PatchsetError on a cycle, and when one needs a hook of the wheel alone.
    """
    sources = {hook.name: dict(_sources(hook, owners, new, shipped, read)) for hook in loaded}
    brought = {_module(file): owner for file, owner in owners.items() if file.endswith(".py")}
    for hook in loaded:
        for file, text in sources[hook.name].items():
            if file in shipped:
                added = _names(text) - _names(read(file).decode("utf-8"))
                brought |= {f"{_module(file)}.{name}": hook for name in added}
    tables = {
        table: hook
        for hook in loaded
        for insert in hook.inserts
        if insert.file.endswith(".fbs")
        for table in re.findall(r"^table (\w+)", insert.text, re.MULTILINE)
    }

    needs: dict[str, dict[str, str]] = {}
    for hook in loaded:
        found = needs.setdefault(hook.name, {})
        for file, text in sources[hook.name].items():
            for name in sorted(_imports(file, text) & brought.keys()):
                if brought[name] is not hook:
                    found.setdefault(brought[name].name, f"{file} imports {name}")
        for file in (f for f, owner in owners.items() if owner is hook and not f.endswith(".py")):
            for table in tables.keys() & set(re.findall(r"\w+", new[file].read_text("utf-8", errors="ignore"))):
                if tables[table] is not hook:
                    found.setdefault(tables[table].name, f"{file} uses {table}")

    wheel_only = {hook.name for hook in loaded if hook.wheel_only}
    rest = [hook for hook in loaded if not hook.wheel_only]
    for hook in rest:
        for other in sorted(needs[hook.name].keys() & wheel_only):
            raise PatchsetError(f"{hook.name}: {needs[hook.name][other]}, which {other} brings to the wheel only")
    result: list[Hook] = []
    while rest:
        left = {hook.name for hook in rest}
        free = next((hook for hook in rest if not needs[hook.name].keys() & left), None)
        if free is None:
            raise PatchsetError(_cycle(rest[0].name, needs, left))
        result.append(free)
        rest.remove(free)
    return result


def _sources(hook: Hook, owners, new, shipped, read) -> Iterator[tuple[str, str]]:
    """The Python files of ``hook``, the upstream ones with its insertions alone."""
    for file, owner in owners.items():
        if owner is hook and file.endswith(".py"):
            yield file, new[file].read_text("utf-8")
    for file, inserts in hooks.by_file([hook], source_only=True).items():
        if file.endswith(".py") and file in shipped:
            text = hooks.apply(read(file).decode("utf-8"), inserts)
            try:
                ast.parse(text)
            except SyntaxError as error:
                reason = f"does not compile by itself: {error.msg}, line {error.lineno}"
                raise PatchsetError(f"{hook.name}: {file}: {reason}") from None
            yield file, text


def _module(file: str) -> str:
    parts = [_PACKAGE, *PurePosixPath(file).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(file: str, text: str) -> set[str]:
    """Every module that is imported, wherever the import stands, and every ``module.name`` imported from one."""
    package = _module(file).split(".") if file.endswith("__init__.py") else _module(file).split(".")[:-1]
    result = set()
    for node in ast.walk(ast.parse(text, file)):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            result |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return result


def _names(text: str) -> set[str]:
    """Names that a module defines at its top level."""
    result = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            result.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            result |= {target.id for target in targets if isinstance(target, ast.Name)}
    return result


def _cycle(start: str, needs: dict[str, dict[str, str]], left: set[str]) -> str:
    """Names the hooks of a cycle that is reached from ``start``, with an import for each step."""
    path = [start]
    while True:
        following = min(needs[path[-1]].keys() & left)
        if following in path:
            path = [*path[path.index(following) :], following]
            steps = (f"{a} needs {b} ({needs[a][b]})" for a, b in zip(path, path[1:]))
            return f"hooks need each other: {'; '.join(steps)}"
        path.append(following)
