"""Compiles the modules that every call of the cache manager passes, with mypyc. The rest is in pyproject.toml.

They are ordinary Python and run as they are where they could not be compiled. ``kvhybrid/compiled.py`` decides at
import which form runs.
"""

import sys
from glob import glob
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import source_hash
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Optional: if it cannot be compiled, kvhybrid.managers.kernel.plain does the same in numpy.
KERNEL = Extension(
    "kvhybrid.managers.kernel._native",
    sorted(glob("managers/kernel/*.c")),
    depends=sorted(glob("managers/kernel/*.h")),
    optional=True,
)

HOT = {
    "kvhybrid.cache": (
        "blocks",
        "counts",
        "event_log",
        "extra_keys",
        "hashing",
        "manager",
        "misses",
        "request",
        "stats_collector",
    ),
    "kvhybrid.cache.coordinators": (
        "allocation",
        "base",
        "groups",
        "hybrid",
        "no_prefix_cache",
        "request_tables",
        "roll_back",
        "unitary",
        "whole_request",
    ),
    "kvhybrid.managers": (
        "arrays",
        "base",
        "cached_prefix",
        "chunked_local",
        "cross",
        "full",
        "growth",
        "mamba",
        "rules",
        "search",
        "sliding_window",
        "suffix",
        "table",
    ),
    "kvhybrid.managers.eviction": ("base", "lru"),
    "kvhybrid.managers.pool": ("block_pool", "keys", "observer"),
    "kvhybrid.managers.prefix": ("index", "key_chain", "number_spans", "run"),
    "kvhybrid.managers.retention": ("base",),
    "kvhybrid.scheduling": ("scheduler",),
}
"""They call each other as C does, so they are compiled together or not at all."""

MODULES = {
    f"{package}.{name}": f"{package.replace('.', '/')}/{name}.py" for package in HOT for name in HOT[package]
}


def manifest() -> str:
    """What ``kvhybrid/compiled.py`` reads."""
    digests = [f"{name} {source_hash(Path(path).read_bytes()).hex()}" for name, path in MODULES.items()]
    return "\n".join([EXTENSION_SUFFIXES[0], *digests])


def compiled() -> list[Extension]:
    try:
        from mypyc.build import mypycify

        # The types of other packages would change nothing: mypyc compiles them as plain objects in any case.
        options = ["--config-file=", "--no-site-packages", "--follow-imports=silent", "--ignore-missing-imports"]
        options += ["--disable-error-code=var-annotated", *MODULES.values()]
        extensions = mypycify(options, group_name="kvhybrid", opt_level="2", debug_level="0")
    except (ImportError, SystemExit) as error:
        print(f"kvhybrid: mypyc is not here or refused ({error}); its modules stay plain Python", file=sys.stderr)
        return []
    for extension in extensions:
        extension.optional = True
        # A warning of some compiler is no reason to go without.
        extension.extra_compile_args = [a for a in extension.extra_compile_args if a != "-Werror"]
    return extensions


class BuildCompiled(build_ext):
    """Leaves the manifest beside what it compiled, and nothing of an earlier build where it compiled nothing."""

    def run(self) -> None:
        place = Path("." if self.inplace else self.build_lib) / "kvhybrid" / "compiled.txt"
        place.unlink(missing_ok=True)
        paths = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        for path in paths:
            path.unlink(missing_ok=True)
        for extension in self.extensions:
            (Path(self.build_lib) / self.get_ext_filename(extension.name)).unlink(missing_ok=True)
        super().run()
        if len(paths) > len(MODULES) and all(path.exists() for path in paths):
            partial = place.with_suffix(".partial")
            partial.write_text(SOURCES)
            partial.replace(place)


SOURCES = manifest()
"""Before mypyc reads them: whoever saves one meanwhile has not had it compiled."""
# Other commands, such as those that ask for the metadata, need not wait for mypyc.
BUILDS = {"bdist_wheel", "build", "build_ext", "editable_wheel", "install"}
setup(ext_modules=[KERNEL, *(compiled() if BUILDS & {*sys.argv} else [])], cmdclass={"build_ext": BuildCompiled})
