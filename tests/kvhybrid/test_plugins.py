"""Plug-ins: classes by name, built in, by decorator or from another distribution, or as module:Class."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from importlib import invalidate_caches
from pathlib import Path

import pytest

from kvhybrid.errors import InputError
from kvhybrid.plugins import Entry, PluginError, Registry
from tests.kvhybrid.distributions import write_distribution

GROUP = "kvhybrid.test_mappings"
MODULE = "plugin_of_a_test"

Install = Callable[..., None]
"""Puts a distribution with these entry points in `GROUP` on the path."""


class Mine(dict[str, int]):
    """A plug-in."""


def new_registry() -> Registry[dict[str, int]]:
    built_in = {"counter": "collections:Counter", "ordered": "collections:OrderedDict"}
    return Registry("mapping", GROUP, "builtins:dict", built_in)


@pytest.fixture
def own() -> Registry[dict[str, int]]:
    return new_registry()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    def write(points: str, source: str = "class Theirs(dict): pass\n", name: str = "theirs") -> None:
        write_distribution(tmp_path, name, {MODULE: source}, {GROUP: points})
        monkeypatch.syspath_prepend(tmp_path)
        invalidate_caches()

    yield write
    sys.modules.pop(MODULE, None)


class TestByName:
    def test_a_name_leads_to_its_class(self, own: Registry[dict[str, int]]) -> None:
        assert own.get("counter") is Counter
        assert own.find("counter") is Counter
        assert "counter" in own
        assert "defaultdict" not in own

    def test_nothing_is_imported_before_it_is_asked_for(self) -> None:
        lazy: Registry[dict[str, int]] = Registry("mapping", GROUP, "no_such:Base", {"a": "no_such:A"})
        assert lazy.names() == ("a",)
        assert "a" in lazy

    def test_entries_say_where_a_name_comes_from(self, own: Registry[dict[str, int]]) -> None:
        own.register("mine")(Mine)
        assert own.entries() == (
            Entry("counter", "collections:Counter", "built in"),
            Entry("mine", f"{__name__}:Mine", "registered"),
            Entry("ordered", "collections:OrderedDict", "built in"),
        )

    def test_an_unknown_name_is_answered_with_the_known_ones(self, own: Registry[dict[str, int]]) -> None:
        with pytest.raises(PluginError, match=r"^unknown mapping 'order'; accepted: counter, ordered$"):
            own.get("order")
        with pytest.raises(
            PluginError, match=r"^unknown mapping 'order'; accepted: counter, ordered, module:Class$"
        ):
            own.find("order")

    def test_its_errors_end_a_command_in_one_line(self) -> None:
        assert issubclass(PluginError, InputError)

    def test_a_class_leads_to_its_name(self, own: Registry[dict[str, int]]) -> None:
        class Special(Counter[str]):
            pass

        assert own.name_of(OrderedDict) == "ordered"
        assert own.name_of(Special) == "counter"
        with pytest.raises(
            PluginError, match=r"mapping builtins:dict is not registered; registered: counter, ordered"
        ):
            own.name_of(dict)


class TestByPath:
    def test_a_class_may_be_named_by_its_path(self, own: Registry[dict[str, int]]) -> None:
        assert own.find("collections:defaultdict") is defaultdict

    def test_a_class_may_be_given_itself(self, own: Registry[dict[str, int]]) -> None:
        assert own.find(Mine) is Mine
        with pytest.raises(PluginError, match=r"mapping must be a subclass of builtins:dict, found builtins:list"):
            own.find(list)

    def test_a_data_file_cannot_choose_what_is_imported(self, own: Registry[dict[str, int]]) -> None:
        with pytest.raises(PluginError, match="unknown mapping 'collections:defaultdict'; accepted: counter"):
            own.get("collections:defaultdict")

    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("no_such_module:A", "cannot be loaded: No module named 'no_such_module'"),
            ("collections:NoSuch", "cannot be loaded: module 'collections' has no attribute 'NoSuch'"),
            ("os:path", "must be a subclass of builtins:dict, found <module"),
            ("collections:deque", "must be a subclass of builtins:dict, found collections:deque"),
            ("collections:", "cannot be loaded"),
        ],
    )
    def test_one_that_cannot_be_used_is_named(self, own: Registry[dict[str, int]], path: str, reason: str) -> None:
        with pytest.raises(PluginError, match=rf"^mapping '{path}' {reason}"):
            own.find(path)

    def test_a_maker_is_a_class_or_a_callable_with_parameters(self, own: Registry[dict[str, int]]) -> None:
        with_parameters = partial(Mine, a=1)
        assert own.maker("counter") is Counter
        assert own.maker(with_parameters) is with_parameters
        assert own.maker("ordered", a=1)(b=2) == {"a": 1, "b": 2}


class TestDecorator:
    def test_it_registers_and_returns_the_class(self, own: Registry[dict[str, int]]) -> None:
        @own.register("decorated")
        class Decorated(dict[str, int]):
            pass

        assert own.get("decorated") is Decorated
        assert own.name_of(Decorated) == "decorated"

    def test_a_name_is_given_once(self, own: Registry[dict[str, int]]) -> None:
        message = (
            r"mapping name 'counter' is taken by collections:Counter \(built in\); .*:Mine \(registered\) needs"
        )
        with pytest.raises(PluginError, match=message):
            own.register("counter")(Mine)
        assert own.get("counter") is Counter

    def test_a_cell_may_be_run_twice(self, own: Registry[dict[str, int]]) -> None:
        classes = []
        for _ in range(2):

            @own.register("cell")
            class Cell(dict[str, int]):
                pass

            classes.append(Cell)
        assert own.get("cell") is classes[-1]

    @pytest.mark.parametrize("thing", [list, {}, "counter", None])
    def test_only_a_class_of_the_kind_is_taken(self, own: Registry[dict[str, int]], thing: type) -> None:
        with pytest.raises(PluginError, match="mapping 'thing' must be a subclass of builtins:dict, found"):
            own.register("thing")(thing)

    def test_a_name_is_needed(self, own: Registry[dict[str, int]]) -> None:
        with pytest.raises(PluginError, match=r"mapping .*:Mine needs a name"):
            own.register("")(Mine)


class TestEntryPoints:
    """Another distribution brings plug-ins by the metadata that it is installed with."""

    def test_they_are_listed_at_once_and_loaded_when_asked_for(self, install: Install) -> None:
        install(f"theirs = {MODULE}:Theirs")
        own = new_registry()
        assert own.entries()[-1] == Entry("theirs", f"{MODULE}:Theirs", "theirs 1.0")
        assert MODULE not in sys.modules
        assert own.get("theirs").__name__ == "Theirs"
        assert own.find("theirs") is sys.modules[MODULE].Theirs

    def test_a_class_leads_to_its_entry_point_by_whatever_path(self, install: Install) -> None:
        install(f"theirs = {MODULE}:Alias", "class Theirs(dict): pass\nAlias = Theirs\n")
        own = new_registry()
        assert own.name_of(own.find(f"{MODULE}:Theirs")) == "theirs"

    def test_a_class_may_be_registered_by_decorator_and_by_entry_point(self, install: Install) -> None:
        install(f"theirs = {MODULE}:Theirs")
        own = new_registry()
        theirs = own.register("theirs")(own.find(f"{MODULE}:Theirs"))
        assert own.get("theirs") is theirs
        assert own.entries()[-1].origin == "theirs 1.0"

    @pytest.mark.parametrize(
        ("points", "source", "reason"),
        [
            (f"theirs = {MODULE}:NoSuch", "", "cannot be loaded: module .* has no attribute 'NoSuch'"),
            ("theirs = no_such_plugin:A", "", "cannot be loaded: No module named 'no_such_plugin'"),
            (f"theirs = {MODULE}:A", "raise RuntimeError('no licence')\n", "cannot be loaded: no licence"),
            (f"theirs = {MODULE}:A", "raise RuntimeError\n", "cannot be loaded: RuntimeError"),
            (f"theirs = {MODULE}:A", "import sys\nsys.exit()\n", "cannot be loaded: SystemExit"),
            (f"theirs = {MODULE}:A", "A = len\n", "must be a subclass of builtins:dict, found"),
        ],
    )
    def test_a_broken_one_is_an_error_if_asked_for_and_a_warning_otherwise(
        self, install: Install, caplog: pytest.LogCaptureFixture, points: str, source: str, reason: str
    ) -> None:
        install(points, source)
        own = new_registry()
        assert own.get("counter") is Counter
        message = rf"mapping 'theirs' \({points.split()[-1]}, theirs 1.0\) {reason}"
        with pytest.raises(PluginError, match=f"^{message}"):
            own.get("theirs")
        for _ in range(2):
            assert list(own.load_all()) == ["counter", "ordered"]
        with caplog.at_level(logging.WARNING):
            (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert own.names() == ("counter", "ordered", "theirs")

    def test_a_built_in_name_stays_built_in(self, install: Install, caplog: pytest.LogCaptureFixture) -> None:
        install(f"counter = {MODULE}:Theirs")
        own = new_registry()
        assert own.get("counter") is Counter
        assert own.names() == ("counter", "ordered")
        (record,) = caplog.records
        assert "'counter' is taken by collections:Counter (built in)" in record.getMessage()
        assert f"{MODULE}:Theirs (theirs 1.0) needs another" in record.getMessage()

    def test_a_name_that_two_distributions_claim_is_refused_if_asked_for(
        self, install: Install, tmp_path: Path
    ) -> None:
        install(f"both = {MODULE}:Theirs")
        write_distribution(tmp_path, "others", {}, {GROUP: "both = collections:OrderedDict"})
        own = new_registry()
        assert own.get("counter") is Counter
        with pytest.raises(PluginError, match=r"'both' is taken by .* \((theirs|others) 1.0\); .* needs another"):
            own.get("both")


def test_to_import_it_is_cheap() -> None:
    code = "import sys, kvhybrid.plugins; print({'torch', 'numpy', 'hydra'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
