"""Command line of the patch set."""

import argparse
import sys
from pathlib import Path

from . import ROOT, PatchsetError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m patchset", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="lint the set against the pinned upstream wheel")
    check.add_argument("--checkout", type=Path, metavar="DIR", help="also try the hooks on this source checkout")
    commands.add_parser("link", help="put the set into this environment's ExecuTorch, new files as symlinks")
    compose = commands.add_parser("compose", help="build the wheel")
    compose.add_argument("-o", "--out", type=Path, default=Path("dist"), metavar="DIR", help="default: dist")
    compose.add_argument("--platform", metavar="TAG", help="a platform tag of upstream, such as manylinux_2_28_aarch64")
    compose.add_argument("--python-version", metavar="X.Y", help="default: that of this interpreter")
    export = commands.add_parser("export", help="write the set as commits, one per concern, onto a source checkout")
    export.add_argument("checkout", type=Path, metavar="DIR")
    commands.add_parser("table", help="print the table of the README")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except ModuleNotFoundError as error:
        advice = f"pip install {error.name}, or use .venv/bin/python, which make link prepares"
        print(f"patchset: {sys.executable} has no module {error.name}: {advice}", file=sys.stderr)
        return 1
    except (PatchsetError, OSError) as error:
        print(f"patchset: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    from . import hooks, upstream

    if args.command == "check":
        from .check import problems

        found = list(problems(upstream.Pristine(upstream.fetch()), checkout=args.checkout))
        print("\n".join(f"patchset: {line}" for line in found) or "patchset: ok", file=sys.stderr if found else None)
        return 1 if found else 0
    loaded = hooks.load(ROOT / "hooks")
    if args.command == "table":
        from .check import table

        print(table(loaded), end="")
    elif args.command == "compose":
        from .compose import compose

        print(compose(args.out, args.platform, args.python_version))
    elif args.command == "export":
        from .export import export

        print(f"patchset: {len(export(loaded, args.checkout))} commits on {args.checkout}")
    elif args.command == "link":
        from .link import link

        print(f"patchset: {link(loaded, upstream.Pristine(upstream.fetch()))} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
