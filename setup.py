"""Builds the S8 kernel where there is a C compiler; without one the wheel is pure Python.

The wheel carries the manual page and the completions where ``make packaging`` has written them.
Everything else is in pyproject.toml.
"""

import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

# No product may be fused with a sum: both ends of the wire must round alike.
OPTIONS = [] if sys.platform == "win32" else ["-std=c11", "-O3", "-ffp-contract=off"]

KERNEL = Extension(
    "client.compute._s8",
    ["client/compute/_s8.c"],
    depends=["client/compute/_s8_kernel.h"],
    extra_compile_args=OPTIONS,
    py_limited_api=True,
    optional=True,
)

GENERATED = {
    "share/man/man1": "packaging/man/volunteer.1",
    "share/bash-completion/completions": "packaging/completions/volunteer.bash",
    "share/zsh/site-functions": "packaging/completions/_volunteer",
    "share/fish/vendor_completions.d": "packaging/completions/volunteer.fish",
}
DATA_FILES = [(folder, [file]) for folder, file in GENERATED.items() if Path(file).is_file()]


def can_compile() -> bool:
    """Whether a compiler, a linker and Python's headers are there."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False  # has no stable binary interface
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nPyMODINIT_FUNC PyInit_probe(void) { return 0; }\n")
        command = build_ext(Distribution({"ext_modules": [Extension("probe", [str(source)])]}))
        command.build_lib = command.build_temp = folder
        try:
            command.ensure_finalized()
            command.run()
        except (BaseError, CCompilerError, OSError):
            return False
    return True


if can_compile():
    setup(
        data_files=DATA_FILES,
        ext_modules=[KERNEL],
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
else:
    setup(data_files=DATA_FILES)
