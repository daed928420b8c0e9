"""Lint the set: hooks against upstream, new files, and the table of the README."""

from collections.abc import Iterator
from pathlib import Path

from . import ROOT, PatchsetError, hooks, order, plan
from .upstream import Pristine

_BEGIN, _END = "<!-- patchset table -->", "<!-- /patchset table -->"


def table(loaded: list[hooks.Hook]) -> str:
    """The patch set as a Markdown table, one row per hook file."""
    rows = [("Hook", "Kind", "What it does", "Upstream", "Remove when")]
    rows.append(("---",) * 5)
    for hook in loaded:
        texts = (_kind(hook), hook.title, hook.upstream, hook.remove_when)
        rows.append((f"`hooks/{hook.name}`", *(" ".join(text.split()).replace("|", "\\|") for text in texts)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _kind(hook: hooks.Hook) -> str:
    if hook.wheel_only:
        return f"{hook.kind}, wheel only"
    sources = hook.inserts and all(insert.source_only for insert in hook.inserts)
    return f"{hook.kind}, sources only" if sources else hook.kind


def problems(pristine: Pristine, root: Path = ROOT, checkout: Path | None = None) -> Iterator[str]:
    """Everything that is wrong with the set at ``root``, one line each.

    With ``checkout``, a source checkout of upstream, the hooks of sources are tried on its files as well.
    """
    try:
        loaded = hooks.load(root / "hooks")
    except PatchsetError as error:
        yield str(error)
        return
    new = plan.new_files(root)
    steps = [
        lambda: plan.refuse_shipped(new, pristine.files),
        lambda: plan.refuse_uncompilable(new),
        lambda: plan.rewritten(hooks.by_file(loaded, source_only=False), pristine.files, pristine.read),
        lambda: plan.owners(loaded, new),
        lambda: _check_readme(root / "README.md", table(loaded)),
    ]
    if checkout:
        steps.append(lambda: _check_checkout(loaded, checkout))
    found = 0
    for step in steps:
        try:
            step()
        except PatchsetError as error:
            found += 1
            yield str(error)
    if not found:  # of files that compile and belong somewhere
        try:
            order.ordered(loaded, plan.owners(loaded, new), new, pristine.files, pristine.read)
        except PatchsetError as error:
            yield str(error)


def _check_checkout(loaded: list[hooks.Hook], checkout: Path) -> None:
    if not (checkout / "backends/xnnpack").is_dir():
        raise PatchsetError(f"{checkout}: no source checkout of upstream, it has no backends/xnnpack")
    inserts = hooks.by_file(loaded, source_only=True)
    shipped = {file for file in inserts if (checkout / file).is_file()}
    shipped |= {p.relative_to(checkout).as_posix() for f in shipped for p in (checkout / f).parent.glob("*.fbs")}
    plan.rewritten(inserts, shipped, lambda file: (checkout / file).read_bytes())


def _check_readme(readme: Path, wanted: str) -> None:
    text = readme.read_text("utf-8") if readme.is_file() else ""
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise PatchsetError(f"{readme.name}: needs the lines {_BEGIN} and {_END} once")
    if text.partition(_BEGIN)[2].partition(_END)[0].strip() != wanted.strip():
        raise PatchsetError(f"{readme.name}: its table is stale; python -m patchset table prints the right one")
