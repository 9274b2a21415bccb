"""The house: folders and rooms on floors, imports only downwards, and the habits of every file."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT = {
    "conf": ("conf",),
    "specs": ("plugins", "specs"),
    "managers": ("plugins", "specs", "managers"),
    "models": ("plugins", "specs", "models"),
}
"""The folders that lie at the top and are linked into the package, and what of ours each may import. The registry
of plug-ins lies below all of them."""

FLOORS = (
    ("errors", "console", "interruption", "streams"),
    ("files", "plugins"),
    ("cache", "text", "run_folder"),
    ("planning", "scheduling", "tracking"),
    ("checkpoints",),
    ("settings",),
    ("engine", "replay", "scenarios", "workloads"),
    ("conformance", "report"),
    ("sessions",),
    ("hydra_app",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""The rooms of ``kvhybrid/``, lowest floor first. A room imports itself and the floors below its own."""
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

HEAVY = {"torch", "transformers", "wandb", "hydra", "omegaconf", "matplotlib"}
LIGHT_FILES = ("kvhybrid/__init__.py", "kvhybrid/cli.py", "kvhybrid/cache/stats.py")
LIGHT_FOLDERS = ("kvhybrid/tracking/", "kvhybrid/commands/", "specs/")
MOST_LINES = 400


@dataclass(frozen=True)
class SourceFile:
    path: str
    """Relative to the repository."""
    text: str
    tree: ast.Module

    def __str__(self) -> str:
        return self.path

    @property
    def folder(self) -> str:
        return self.path.split("/")[0]

    @property
    def module(self) -> str:
        """The name that it is imported by."""
        name = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"kvhybrid.{name}" if self.folder in MAY_IMPORT else name

    def at(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.path}:{node.lineno}"


def read(*folders: str) -> list[SourceFile]:
    """Every Python file of these folders, links not followed."""
    found = []
    for folder in folders:
        for parent, names, files in os.walk(ROOT / folder):
            names[:] = sorted(name for name in names if name not in ("__pycache__", "outputs"))
            for name in sorted(files):
                if name.endswith(".py"):
                    place = Path(parent, name)
                    text = place.read_text(encoding="utf-8")
                    found.append(SourceFile(place.relative_to(ROOT).as_posix(), text, ast.parse(text)))
    return found


PACKAGE = read("conf", "specs", "managers", "models", "kvhybrid")
EVERYTHING = [*PACKAGE, *read("runs", "tests")]


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every imported module by its full name, wherever the statement stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node, node.module
            # from kvhybrid import managers
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


MODULE_PATH = re.compile(r"kvhybrid(?:\.\w+)+(?=$|:\w)")


MODULES = {source.module for source in PACKAGE}


def named_in_strings(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Every module of ours that a string names, as registries do. Other strings only look alike, such as
    ``kvhybrid.orders``, a group of entry points."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and (found := MODULE_PATH.match(text)) and found[0] in MODULES:
            yield node, found[0]


def used(tree: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    yield from imports(tree)
    yield from named_in_strings(tree)


def imports_at_import_time(statements: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """As `imports`, but only what runs when the module is imported."""
    for node in statements:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports_at_import_time(node.orelse)
            continue
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(node, "handlers", [])]
        if any(blocks):
            for block in blocks:
                yield from imports_at_import_time(block)
        else:
            yield from imports(node)


def first_names(modules: Iterator[tuple[ast.stmt, str]]) -> Iterator[tuple[ast.stmt, str]]:
    return ((node, module.split(".")[0]) for node, module in modules)


def test_the_walk_sees_every_floor() -> None:
    assert {source.folder for source in PACKAGE} == {*MAY_IMPORT, "kvhybrid"}
    assert not [
        source.path for source in PACKAGE if source.path.startswith(tuple(f"kvhybrid/{f}/" for f in MAY_IMPORT))
    ]


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("kvhybrid.managers.full:FullAttentionManager", "kvhybrid.managers.full"),
        ("kvhybrid.cache.manager", "kvhybrid.cache.manager"),
        ("kvhybrid.orders", None),
        ("kvhybrid.managers.nowhere:Manager", None),
        ("see kvhybrid.cache.manager", None),
    ],
)
def test_a_string_counts_where_it_names_a_module(text: str, module: str | None) -> None:
    assert [name for _, name in used(ast.parse(f"target = {text!r}"))] == ([module] if module else [])


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_no_floor_above_its_own(folder: str) -> None:
    allowed = tuple(f"kvhybrid.{name}" for name in MAY_IMPORT[folder])
    upward = [
        f"{source.at(node)} imports {module}"
        for source in PACKAGE
        if source.folder == folder
        for node, module in used(source.tree)
        if module.split(".")[0] == "kvhybrid" and module != "kvhybrid"
        if not any(module == name or module.startswith(f"{name}.") for name in allowed)
    ]
    assert upward == []


def room_of(module: str) -> str | None:
    """The room of ``kvhybrid/`` that a module lies in; None for what the lower folders have."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "kvhybrid" and parts[1] not in MAY_IMPORT else None


def test_every_room_has_its_floor() -> None:
    rooms = {source.path.split("/")[1].removesuffix(".py") for source in PACKAGE if source.folder == "kvhybrid"}
    assert rooms - {"__init__"} == set(FLOOR)


def test_a_room_imports_only_the_floors_below_its_own() -> None:
    upward = [
        f"{source.at(node)} imports {module}"
        for source in PACKAGE
        if source.folder == "kvhybrid" and (here := room_of(source.module))
        for node, module in used(source.tree)
        if (there := room_of(module)) in FLOOR and there != here and FLOOR[there] >= FLOOR[here]
    ]
    assert upward == []


def test_nothing_imports_runs_or_tests() -> None:
    upward = [
        f"{source.at(node)} imports {name}"
        for source in PACKAGE
        for node, name in first_names(imports(source.tree))
        if name in ("runs", "tests")
    ]
    assert upward == []


def test_linked_folders_are_imported_by_their_one_name() -> None:
    twice = [
        f"{source.at(node)} imports {name}, not kvhybrid.{name}"
        for source in EVERYTHING
        for node, name in first_names(imports(source.tree))
        if name in MAY_IMPORT
    ]
    assert twice == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for type checkers count: modules in a circle cannot be read one after the other."""
    sources = {source.module: source for source in EVERYTHING}
    graph = {
        name: {module for _, module in imports(source.tree) if module in sources and module != name}
        for name, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_test_folders_mirror_the_sources() -> None:
    """A test lies where its subject lies. ``tests`` has also its own data, distribution and installations."""
    own = ("tests/installation", "tests/plugins", "tests/scenarios")
    stray = {
        folder
        for source in EVERYTHING
        if source.folder == "tests" and not source.path.startswith(own)
        if not (ROOT / (folder := Path(source.path).parent).relative_to("tests")).is_dir()
    }
    assert stray == set()


def test_imports_are_absolute() -> None:
    relative = [
        source.at(node)
        for source in EVERYTHING
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def names_a_spec(node: ast.expr) -> bool:
    """Whether a kind is named. `KVCacheSpec` is none: to ask whether an object is a spec at all is fine."""
    names = (ast.unparse(part) for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute)))
    return any(name.endswith("Spec") and not name.endswith("KVCacheSpec") for name in names)


def asks_for_a_kind_of_spec(node: ast.AST) -> bool:
    """``isinstance`` or ``issubclass`` with a spec class, ``type(x) is SomeSpec``, ``case SomeSpec():``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("isinstance", "issubclass") and any(map(names_a_spec, node.args[1:]))
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        is_type = [isinstance(side, ast.Call) and ast.unparse(side.func) == "type" for side in sides]
        return any(is_type) and any(map(names_a_spec, sides))
    return isinstance(node, ast.MatchClass) and names_a_spec(node.cls)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("isinstance(spec, MambaSpec)", True),
        ("isinstance(spec, (specs.FullAttentionSpec, int))", True),
        ("type(spec) is MambaSpec", True),
        ("match spec:\n case MambaSpec(): pass", True),
        ("isinstance(spec, KVCacheSpec)", False),
        ("spec.state", False),
        ("isinstance(spec, int)", False),
        ("MambaSpec(block_size=4) == spec", False),
    ],
)
def test_asking_for_a_kind_of_spec_is_noticed(code: str, expected: bool) -> None:
    assert any(map(asks_for_a_kind_of_spec, ast.walk(ast.parse(code)))) is expected


def test_no_layer_above_the_managers_asks_what_kind_a_spec_is() -> None:
    asking = [
        f"{source.path}:{getattr(node, 'lineno', '?')}"
        for source in PACKAGE
        if source.folder == "kvhybrid"
        for node in ast.walk(source.tree)
        if asks_for_a_kind_of_spec(node)
    ]
    assert asking == []


def test_files_are_short() -> None:
    long = {source.path: lines for source in PACKAGE if (lines := len(source.text.splitlines())) > MOST_LINES}
    assert long == {}


def test_nothing_is_called_utils() -> None:
    vague = {"utils", "util", "helpers", "misc", "common"}
    parts = [(source.path, set(source.path.removesuffix(".py").split("/"))) for source in EVERYTHING]
    assert [path for path, names in parts if names & vague] == []


def test_the_light_files_import_nothing_heavy() -> None:
    heavy = [
        f"{source.at(node)} imports {name}"
        for source in PACKAGE
        if source.path in LIGHT_FILES or source.path.startswith(LIGHT_FOLDERS)
        for node, name in first_names(imports_at_import_time(source.tree.body))
        if name in HEAVY
    ]
    assert heavy == []


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with the repository as the folder to start from, as a user's script there would."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_help_specs_and_figures_come_without_anything_heavy() -> None:
    result = python(
        "import sys, kvhybrid, kvhybrid.cache.stats, kvhybrid.tracking\n"
        "from kvhybrid.cli import main\n"
        "assert main(['--help']) == main(['specs']) == main(['run', '--help']) == 0\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_links_are_relative_and_lead_to_the_top() -> None:
    links = {place.name: os.readlink(place) for place in (ROOT / "kvhybrid").iterdir() if place.is_symlink()}
    assert links == {folder: f"../{folder}" for folder in MAY_IMPORT}


def test_a_linked_folder_refuses_another_name() -> None:
    result = python(
        "from importlib import import_module\n"
        f"for name in {list(MAY_IMPORT)!r}:\n"
        "    try:\n"
        "        import_module(name)\n"
        "    except ImportError as error:\n"
        "        print(error)"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"import this folder as kvhybrid.{folder}, not as {folder}" for folder in MAY_IMPORT
    ]
