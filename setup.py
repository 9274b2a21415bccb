"""What pyproject.toml cannot say: the kernel in C, and the modules that mypyc compiles.

A wheel, and so ``pip install .``, holds the hot modules compiled. An editable install builds the kernel alone and
runs the modules' sources, so that an edited file is always what runs. Without a C compiler both are left out: the
kernel has a form in numpy, and the modules are ordinary Python.
"""

import sys
from glob import glob
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from shutil import rmtree

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

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
        "pooled_groups",
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
    "kvhybrid.managers.pool": (
        "block_pool",
        "keys",
        "large_pages",
        "observer",
        "small_pages",
    ),
    "kvhybrid.managers.prefix": ("index", "key_chain", "number_spans", "run"),
    "kvhybrid.managers.retention": ("base",),
    "kvhybrid.scheduling": ("base", "scheduler"),
}
"""They call each other as C does, so they are compiled together or not at all."""

LINKS = [f"kvhybrid/{folder}" for folder in ("specs", "managers", "models", "conf")]

KERNEL = Extension(
    "kvhybrid.managers.kernel._native",
    sources=sorted(glob("managers/kernel/*.c")),
    depends=sorted(glob("managers/kernel/*.h")),
    optional=True,
)


def hot_extensions() -> list[Extension]:
    paths = [f"{package.replace('.', '/')}/{name}.py" for package in HOT for name in HOT[package]]
    # The types of other packages would change nothing: mypyc compiles them as plain objects in any case.
    options = ["--config-file=", "--no-site-packages", "--follow-imports=silent", "--ignore-missing-imports"]
    options += ["--disable-error-code=var-annotated", *paths]
    try:
        from mypyc.build import mypycify

        extensions = mypycify(options, group_name="kvhybrid.hot", opt_level="2", debug_level="0")
    except (ImportError, SystemExit) as error:
        print(f"kvhybrid: mypyc is missing or failed ({error}); its modules stay plain Python", file=sys.stderr)
        return []
    for extension in extensions:
        extension.optional = True
        # A warning of some compiler is no reason to go without.
        extension.extra_compile_args = [a for a in extension.extra_compile_args if a != "-Werror"]
    return extensions


class Build(build):
    """Starts from nothing, so that a wheel never holds what an earlier build left in the ``build`` folder."""

    def run(self) -> None:
        rmtree(Path(self.build_lib, "kvhybrid"), ignore_errors=True)
        super().run()


class BuildExtensions(build_ext):
    """Beside the sources: nothing but the kernel of this build. In a wheel: all hot modules, or none."""

    def run(self) -> None:
        if self.inplace:
            for folder in ("kvhybrid", "managers"):
                for left in Path(folder).rglob(f"*{EXTENSION_SUFFIXES[0]}"):
                    left.unlink()
        super().run()
        hot = [Path(self.get_ext_fullpath(built.name)) for built in self.extensions if built is not KERNEL]
        if not all(path.exists() for path in hot):
            for path in hot:
                path.unlink(missing_ok=True)


if broken := [link for link in LINKS if not Path(link).is_dir()]:
    raise SystemExit(
        f"kvhybrid cannot be installed from here: {', '.join(broken)} must be symbolic links to the folders at "
        "the top, but did not arrive as links; clone with git (on Windows: git clone -c core.symlinks=true, in "
        "developer mode), or unpack the archive with a program that keeps symbolic links"
    )

setup(
    # mypyc takes its time, so only what builds a wheel waits for it.
    ext_modules=[KERNEL, *(hot_extensions() if "bdist_wheel" in sys.argv else [])],
    cmdclass={"build": Build, "build_ext": BuildExtensions},
)
