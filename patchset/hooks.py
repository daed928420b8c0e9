"""Hook files: parsing, and applying their insertions to upstream text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import PatchsetError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

_REQUIRED = ("title", "why", "upstream", "remove_when")
_OPTIONAL = {"kind": str, "source_only": bool, "wheel_only": bool, "files": list, "insert": list}
_INSERT_KEYS = {"file": str, "text": str, "after": str, "before": str, "source_only": bool}
_UPSTREAM = re.compile(r"not-needed|[\w.-]+/[\w.-]+#\d+(, [\w.-]+/[\w.-]+#\d+)*")


@dataclass(frozen=True)
class Insert:
    """``text`` goes ``where`` ("after" or "before") the one line of ``file`` that ``anchor`` matches."""

    hook: str
    file: str
    where: str
    anchor: str
    text: str
    source_only: bool

    def error(self, reason: str) -> PatchsetError:
        return PatchsetError(f"{self.hook}: {self.file}: {self.where} {self.anchor!r}: {reason}")


@dataclass(frozen=True)
class Hook:
    """One concern: its header, its insertions, and glob patterns of the new files that belong to it."""

    name: str
    title: str
    why: str
    upstream: str
    remove_when: str
    kind: str
    wheel_only: bool
    files: tuple[str, ...]
    inserts: tuple[Insert, ...]


def load(directory: Path) -> list[Hook]:
    """Every hook of ``directory``, in the order of file names."""
    return [parse(path.name, path.read_text("utf-8")) for path in sorted(directory.glob("*.toml"))]


def parse(name: str, text: str) -> Hook:
    """The hook file ``name`` with the TOML ``text``; raises PatchsetError on anything unexpected."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PatchsetError(f"{name}: {error}") from None
    _check_keys(name, data, dict.fromkeys(_REQUIRED, str) | _OPTIONAL)
    for key in _REQUIRED:
        if not data.get(key, "").strip():
            raise PatchsetError(f"{name}: {key} is missing or empty")
    if not _UPSTREAM.fullmatch(data["upstream"]):
        raise PatchsetError(f"{name}: upstream is neither owner/repository#number nor not-needed: {data['upstream']!r}")
    if data.get("kind", "wiring") not in ("wiring", "logic"):
        raise PatchsetError(f"{name}: kind is neither wiring nor logic: {data['kind']!r}")
    files = tuple(data.get("files", ()))
    inserts = tuple(_parse_insert(name, entry, data.get("source_only", False)) for entry in data.get("insert", ()))
    wheel_only = data.get("wheel_only", False)
    if wheel_only and any(insert.source_only for insert in inserts):
        raise PatchsetError(f"{name}: wheel_only and source_only exclude each other")
    if not files and not inserts:
        raise PatchsetError(f"{name}: neither an [[insert]] nor files")
    return Hook(name, *(data[key] for key in _REQUIRED), data.get("kind", "wiring"), wheel_only, files, inserts)


def _parse_insert(name: str, entry: dict, source_only: bool) -> Insert:
    _check_keys(name, entry, _INSERT_KEYS)
    where = [key for key in ("after", "before") if key in entry]
    if len(where) != 1 or "file" not in entry or "text" not in entry:
        raise PatchsetError(f"{name}: an [[insert]] needs file, text, and one of after and before")
    insert = Insert(
        name, entry["file"], where[0], entry[where[0]], entry["text"], entry.get("source_only", source_only)
    )
    if not insert.text.strip() or not insert.text.endswith("\n"):
        raise insert.error("text is empty or does not end its last line")
    try:
        re.compile(insert.anchor)
    except re.error as error:
        raise insert.error(f"anchor is no regular expression: {error}") from None
    return insert


def _check_keys(name: str, data: dict, known: dict[str, type]) -> None:
    for key, value in data.items():
        if key not in known:
            raise PatchsetError(f"{name}: unknown key {key!r}")
        if not isinstance(value, known[key]):
            raise PatchsetError(f"{name}: {key} must be a {known[key].__name__}")


def by_file(hooks: Iterable[Hook], *, source_only: bool) -> dict[str, list[Insert]]:
    """Insertions by upstream file, in order: those of a source checkout if ``source_only`` ones are asked for, without
    the ones for the wheel alone, else those of the wheel."""
    result: dict[str, list[Insert]] = {}
    for hook in hooks:
        for insert in hook.inserts:
            if not hook.wheel_only if source_only else not insert.source_only:
                result.setdefault(insert.file, []).append(insert)
    return result


def apply(pristine: str, inserts: Iterable[Insert]) -> str:
    """``pristine`` with all ``inserts``, each located in ``pristine``, so that none depends on another."""
    lines = pristine.splitlines(keepends=True)
    at: dict[int, list[str]] = {}
    for insert in inserts:
        matches = [i for i, line in enumerate(lines) if re.search(insert.anchor, line.rstrip("\r\n"))]
        if len(matches) != 1:
            raise insert.error(f"anchor matches {len(matches)} lines, not one")
        if "\n" + insert.text.strip("\n") + "\n" in "\n" + pristine + "\n":
            raise insert.error("text is already present")
        at.setdefault(matches[0] + (insert.where == "after"), []).append(insert.text)
    if len(lines) in at and lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return "".join("".join(at.get(i, ())) + "".join(lines[i : i + 1]) for i in range(len(lines) + 1))
