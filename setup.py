"""Build configuration that data cannot express: three roots make one package tree."""

import shutil

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOTS = {"frame": "frame", "frame.codegen": "codegen", "frame.backends": "backends"}


class CleanBuild(build_py):
    """Copy modules into an empty folder, so that a deleted module is not in the wheel."""

    def run(self) -> None:
        """Empty the build folder, then build as usual."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


def packages_of(name: str, folder: str) -> list[str]:
    """Return the dotted names of a mapped root and of every package below it."""
    return [name, *(f"{name}.{below}" for below in find_packages(folder))]


setup(
    package_dir=ROOTS,
    packages=[package for root in ROOTS.items() for package in packages_of(*root)],
    cmdclass={"build_py": CleanBuild},
)
