"""Stands in for SGLang's package of GPU kernels, where no kernel can run: every name can be imported, no name can be called.

SGLang's plain PyTorch code serves a small dense model without any of them.
"""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.4.10"
__path__ = []


class Missing:
    """Has attributes like any other, but calling it raises: no silent wrong answer."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")

    def __call__(self, *_args, **_kwargs):
        raise NotImplementedError(f"{self._name} needs a GPU")


class Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(__name__ + "."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = Missing(spec.name).__getattr__
        return module

    def exec_module(self, module):
        pass


__getattr__ = Missing(__name__).__getattr__
sys.meta_path.insert(0, Submodules())
